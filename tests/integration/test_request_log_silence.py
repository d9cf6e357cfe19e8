"""What the request log must never say: prompts, outputs, keys, and words of clients' sessions."""

import hashlib
import json
from pathlib import Path

import pytest

from gateway.api.routes import ROUTES
from gateway.emulator.options import EmulatorOptions
from tests.support.asks import EVERY, FIELDS, MODEL
from tests.support.gateway import eventually
from tests.support.house import house

ENGINE = EmulatorOptions(profile="instant", embeddings=True)
KEY = "sk-fairgate-very-secret"
SECRET = "Zyxwvut"
"""In every text that a client sends."""
SHA256 = hashlib.sha256(KEY.encode()).hexdigest()
KEYS = [{"tenant": "acme", "user": "alice", "tier": "standard", "key_sha256": SHA256}]


def told(value: object) -> object:
    """A field of a request, with the secret in all texts of its."""
    if isinstance(value, str):
        return f"{value} {SECRET}"
    if isinstance(value, list):
        return [told(each) for each in value]
    if isinstance(value, dict):
        return {key: each if key == "role" else told(each) for key, each in value.items()}
    return value


def body_of(name: str, *, streams: bool) -> dict[str, object]:
    """A request for a route."""
    fields = {key: told(value) for key, value in FIELDS[name].items()}
    return {"model": MODEL, **fields, "stream": streams, "user": "bob"}


@pytest.mark.timeout(120)
async def test_no_line_says_what_was_asked_or_with_which_key(tmp_path: Path) -> None:
    """It is kept for months, copied to other machines, and read by people who may not know."""
    path = tmp_path / "requests.log"
    asks = [ask for ask in EVERY if not ask.route.is_form]
    async with house(ENGINE, keys=KEYS, log__requests=str(path)) as found:
        headers = {"authorization": f"Bearer {KEY}", "x-session-id": f"about {SECRET}"}
        said = ""
        for ask in asks:
            body = body_of(ask.route.name, streams=ask.streams)
            answer = await found.http.post(ask.route.path, json=body, headers=headers)
            said += answer.text
        wrong = {"model": MODEL, "messages": [{"role": SECRET, "content": SECRET}], "n": SECRET}
        await found.http.post("/v1/chat/completions", json=wrong, headers=headers)
        log = found.running.gateway.writers.log
        assert log is not None
        await eventually(lambda: log.written >= len(found.settled) >= len(asks))
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["route"] for line in lines} >= {ask.route.name for ask in asks}
    assert {line["route"] for line in lines} <= {route.name for route in ROUTES.values()}
    for secret in (SECRET, KEY, SHA256, SHA256[:16]):
        assert secret not in text
    outputs = {word for word in json.dumps(said).split() if len(word) > 12}
    assert outputs
    assert not [word for word in outputs if word in text]
