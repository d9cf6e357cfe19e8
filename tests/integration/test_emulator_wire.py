"""The emulated engine on the wire, held against recordings of a real vLLM 0.32.

Ids, times, texts, token ids and fingerprints are free; everything else must agree: status, headers,
keys and their order, events and their order, and error bodies to the byte.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.support.shared import shared_path

RECORDED_OPTIONS = EmulatorOptions(models=("tiny",), profile="instant", max_model_len=1024)

ROUTES = {
    "count_tokens": "/v1/messages/count_tokens",
    "detokenize": "/detokenize",
    "tokenize": "/tokenize",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
"""By a part of a recording's name; the first that fits."""
CHATS = ("err_missing_messages",)
"""Recordings of chats whose names fit another route."""

STREAMS = (
    *("chat_stream", "chat_stream_token_ids", "chat_stream_usage", "chat_stream_usage_cont"),
    *("chat_n2_stream", "completion_stream", "completion_batch_stream"),
)
ANSWERS = (
    *("chat", "chat_continue_final", "chat_priority", "chat_stop", "chat_token_ids", "completion"),
    *("messages_count_tokens", "messages", "responses"),
    *("completion_token_prompt", "err_no_model", "err_wrong_content_type", "tokenize"),
    *("tokenize_chat", "detokenize", "unknown_param_ignored"),
)
ERRORS = (
    *("err_bad_json", "err_bad_token_ids", "err_context_too_long", "err_embeddings"),
    *("err_empty_body", "err_max_tokens_too_big", "err_max_tokens_zero", "err_missing_messages"),
    *("err_missing_prompt", "err_priority_float", "err_priority_huge", "err_priority_string"),
    *("err_stream_options_nostream", "err_temperature", "err_tools_no_parser"),
    *("err_unknown_model", "err_unknown_model_stream", "err_wrong_type"),
)
FREE_STRINGS = frozenset(
    {
        *("id", "content", "text", "system_fingerprint", "prompt", "stop_reason"),
        *("delta", "item_id", "token"),
    }
)
FREE_LISTS = frozenset({"token_ids", "prompt_token_ids", "tokens", "token_strs", "bytes"})
COUNTED = frozenset({"completion_tokens", "max_model_len", "index", "code"})


class Recording:
    """One recorded exchange: the request's body, and the answer taken apart."""

    def __init__(self, name: str) -> None:
        folder = shared_path("fixtures", "http")
        request = folder / f"{name}.req.json"
        self.request = request.read_bytes() if request.exists() else b""
        head, _, self.body = (folder / f"{name}.http").read_bytes().partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = dict(line.split(": ", 1) for line in lines[1:])

    @property
    def header_names(self) -> set[str]:
        """Without the two that are about the connection, not the answer."""
        return set(self.headers) - {"connection", "x-request-id"}

    @property
    def content_type(self) -> str:
        """As recorded."""
        return self.headers["content-type"]


def route_of(name: str) -> str:
    """Where a recording's request was sent."""
    body = Recording(name).request
    for part, route in ROUTES.items():
        if part in name and name not in CHATS:
            return route
    is_completion = "completion" in name or b'"prompt"' in body or name == "err_missing_prompt"
    return "/v1/completions" if is_completion else "/v1/chat/completions"


def skeleton(value: Any, key: str = "") -> Any:
    """A value without what may differ: keys in order, types, and the counts that must agree."""
    match value:
        case dict():
            return [(name, skeleton(inner, name)) for name, inner in value.items()]
        case list():
            return "list" if key in FREE_LISTS else [skeleton(inner) for inner in value]
        case str():
            return "string" if key in FREE_STRINGS else value
        case bool():
            return value
        case int():
            return value if key in COUNTED else "number"
        case _:
            return value


def events_of(body: bytes) -> list[Any]:
    """The data of each event; each must be one line and end with an empty one."""
    assert body.endswith(b"\n\n")
    events = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        assert block.startswith("data: ")
        assert "\n" not in block
        data = block.removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


def named_events_of(body: bytes) -> list[tuple[str, Any]]:
    """(name, data) of each event; the name must be the data's own type."""
    assert body.endswith(b"\n\n")
    events = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        parsed = json.loads(data.removeprefix("data: "))
        assert name == f"event: {parsed['type']}"
        events.append((parsed["type"], parsed))
    return events


@asynccontextmanager
async def client_of(
    options: EmulatorOptions = RECORDED_OPTIONS,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an emulator of its own."""
    async with (
        running_emulator(options) as emulator,
        httpx.AsyncClient(base_url=emulator.url, timeout=10) as client,
    ):
        yield client


async def replayed(name: str) -> tuple[Recording, httpx.Response]:
    """The recording and what the emulator answers to the same request."""
    recording = Recording(name)
    async with client_of() as client:
        response = await client.post(
            route_of(name), content=recording.request, headers={"content-type": "application/json"}
        )
    assert response.status_code == recording.status
    assert {key.decode() for key, _ in response.headers.raw} == recording.header_names
    assert response.headers["content-type"] == recording.content_type
    return recording, response


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_has_the_recorded_events(name: str) -> None:
    """A relay that parses these events would break on the real ones."""
    recording, response = await replayed(name)
    ours, real = events_of(response.content), events_of(recording.body)
    assert [skeleton(event) for event in ours] == [skeleton(event) for event in real]


@pytest.mark.parametrize("name", ["messages_stream", "responses_stream"])
async def test_a_stream_of_named_events_has_the_recorded_ones(name: str) -> None:
    """Events without `[DONE]` end in their own way, which a relay must know."""
    recording, response = await replayed(name)
    ours, real = named_events_of(response.content), named_events_of(recording.body)
    assert collapsed(ours) == collapsed(real)
    usages = [str(one[-1][1]).count("output_tokens") for one in (ours, real)]
    assert usages[0] == usages[1]


def collapsed(events: list[tuple[str, Any]]) -> list[Any]:
    """Skeletons in order; of equal ones after another, which are pieces of text, one is left."""
    shown = [(name, skeleton(body)) for name, body in events]
    return [one for at, one in enumerate(shown) if at == 0 or one != shown[at - 1]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["chat", "completion", "messages", "responses"])
async def test_a_full_engine_answers_each_route_in_its_own_shape(route: str, stream: bool) -> None:
    """Anthropic's clients look for the error in another place than OpenAI's."""
    recording = Recording(f"overload_{route}{'_stream' if stream else ''}")
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "x"}],
        "prompt": "x",
        "input": "x",
        "max_tokens": 5,
        "stream": stream,
    }
    options = EmulatorOptions(models=("tiny",), profile="instant", faults=("busy",))
    async with client_of(options) as client:
        answer = await client.post(route_of(f"overload_{route}"), json=body)
    assert answer.status_code == recording.status
    assert answer.content == recording.body


async def test_the_probabilities_of_tokens_stand_where_they_were_recorded() -> None:
    """Evaluation tools read nothing else of an answer."""
    recording, response = await replayed("chat_logprobs")
    ours, real = response.json()["choices"][0], json.loads(recording.body)["choices"][0]
    shown = [_without(skeleton(one["logprobs"]), {"logprob"}) for one in (ours, real)]
    assert shown[0] == shown[1]
    chosen, other = ours["logprobs"]["content"][0]["top_logprobs"]
    assert 0 >= chosen["logprob"] > other["logprob"]


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_plain_answer_has_the_recorded_keys_in_their_order(name: str) -> None:
    """Code that reads usage or token ids would look in the wrong place."""
    recording, response = await replayed(name)
    ours, real = skeleton(response.json()), skeleton(json.loads(recording.body))
    if name == "chat_stop":
        ours, real = (json.loads(json.dumps(one).replace("stop", "")) for one in (ours, real))
        ours, real = ([key for key, _ in one] for one in (ours, real))
    if name.startswith(("tokenize", "detokenize")):
        assert [key for key, _ in ours] == [key for key, _ in real]
    else:
        assert ours == real


@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_is_the_recorded_one_to_the_byte(name: str) -> None:
    """Normalising engine errors would be tested against invented ones."""
    recording, response = await replayed(name)
    assert response.content == recording.body


async def test_a_stop_string_is_named_as_the_reason() -> None:
    """Clients could not tell which of their stop strings ended the answer."""
    async with client_of() as client:
        body = Recording("chat_stop").request
        choice = (await client.post("/v1/chat/completions", content=body)).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "e")
    assert "e" not in choice["message"]["content"]


@pytest.mark.parametrize("name", ["chat_stream_usage", "completion_stream"])
async def test_each_event_is_a_chunk_of_its_own(name: str) -> None:
    """A relay that relies on chunk borders, or breaks on them, would not be found out."""
    recorded = chunks_of(Recording(f"{name}.rawchunked").body)
    body = Recording(name).request
    async with running_emulator(RECORDED_OPTIONS) as emulator:
        ours = chunks_of(await raw_answer(emulator.port, route_of(name), body))
    assert len(ours) == len(recorded)
    assert all(chunk.count(b"data: ") == 1 for chunk in ours)


async def raw_answer(port: int, route: str, body: bytes) -> bytes:
    """The body of an answer with its chunk framing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {route} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
    answer = await reader.read(-1)
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


def chunks_of(framed: bytes) -> list[bytes]:
    """The chunks of a chunked body, the last one of length 0 included."""
    chunks = []
    while framed:
        size, _, framed = framed.partition(b"\r\n")
        chunks.append(framed[: int(size, 16)])
        framed = framed[int(size, 16) + 2 :]
    assert chunks.pop() == b""
    return chunks


async def test_the_small_routes_answer_as_recorded() -> None:
    """Probes and health checks would be written against another server."""
    async with client_of() as client:
        assert (await client.get("/version")).json() == {"version": "0.32.0"}
        assert (await client.get("/load")).json() == {"server_load": 0}
        for path in ("/health", "/ping"):
            response = await client.get(path)
            assert (response.status_code, response.content) == (200, b"")
            assert "content-type" not in response.headers
        models = (await client.get("/v1/models")).json()
        recorded = json.loads(shared_path("fixtures", "v1_models.body.txt").read_text())
        free = {"created", "id", "root"}
        assert _without(skeleton(models), free) == _without(skeleton(recorded), free)
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"


def _without(value: Any, keys: set[str]) -> Any:
    if isinstance(value, list):
        return [_without(inner, keys) for inner in value]
    if isinstance(value, tuple):
        return value[0] if value[0] in keys else (value[0], _without(value[1], keys))
    return value


async def test_unknown_paths_methods_and_keys_are_refused_as_recorded() -> None:
    """The one error whose `error` is a string would surprise a gateway in production."""
    options = EmulatorOptions(models=("tiny",), profile="instant", api_key="secret")
    async with client_of(options) as client:
        answers = {
            "err_not_found_path": await client.get("/v1/nothing"),
            "err_method_not_allowed": await client.get("/v1/completions"),
            "err_api_key_missing": await client.get("/v1/models"),
        }
        health = await client.get("/health")
        models = await client.get("/v1/models", headers={"authorization": "Bearer secret"})
    for name, answer in answers.items():
        recording = Recording(name)
        assert (answer.status_code, answer.content) == (recording.status, recording.body)
    assert (health.status_code, models.status_code) == (200, 200)


async def test_an_adapter_is_listed_with_its_base_model() -> None:
    """Model discovery could not tell an adapter from a second model."""
    options = EmulatorOptions(models=("base", "adapter"), profile="instant")
    async with client_of(options) as client:
        cards = (await client.get("/v1/models")).json()["data"]
        answer = await client.post("/v1/completions", json={"model": "adapter", "prompt": "a"})
    assert [(card["id"], card["parent"]) for card in cards] == [
        ("base", None),
        ("adapter", "base"),
    ]
    assert answer.json()["model"] == "adapter"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_request_id_becomes_the_answers_id(stream: bool) -> None:
    """Logs of gateway and engine could not be joined."""
    async with client_of() as client:
        response = await client.post(
            "/v1/chat/completions",
            headers={"X-Request-Id": "gw-abc-123"},
            json={
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 2,
                "stream": stream,
            },
        )
    assert '"id":"chatcmpl-gw-abc-123"' in response.text


async def test_a_chat_is_continued_on_another_emulator_by_its_token_ids() -> None:
    """Continuing broken streams would be tested against an engine that cannot be continued."""
    chat = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "temperature": 0,
        "max_tokens": 40,
        "return_token_ids": True,
    }
    async with client_of() as one, client_of() as other:
        whole = (await one.post("/v1/chat/completions", json=chat)).json()
        ids = whole["choices"][0]["token_ids"]
        rest = await other.post(
            "/v1/completions",
            json={
                "prompt": whole["prompt_token_ids"] + ids[:15],
                "temperature": 0,
                "max_tokens": 25,
                "return_token_ids": True,
            },
        )
    assert rest.json()["choices"][0]["token_ids"] == ids[15:]


@pytest.mark.parametrize("jitter", [0.0, 0.5])
async def test_output_jitter_varies_lengths_below_the_limit(jitter: float) -> None:
    """A demo whose answers all have one length shows no scheduling; one above it breaks limits."""
    options = EmulatorOptions(profile="instant", output_jitter=jitter)
    async with client_of(options) as client:
        answers = [
            (
                await client.post("/v1/completions", json={"prompt": f"p{n}", "max_tokens": 60})
            ).json()
            for n in range(20)
        ]
    lengths = {answer["usage"]["completion_tokens"] for answer in answers}
    reasons = {answer["choices"][0]["finish_reason"] for answer in answers}
    if jitter:
        assert len(lengths) > 5
        assert 20 <= min(lengths) < max(lengths) <= 60
        assert "stop" in reasons
    else:
        assert (lengths, reasons) == ({60}, {"length"})


async def test_a_chat_without_limit_can_have_a_natural_length() -> None:
    """A person trying the demo would wait minutes for the end of the context."""
    options = EmulatorOptions(profile="instant", natural_tokens=12)
    async with client_of(options) as client:
        messages = [{"role": "user", "content": "hi"}]
        answer = (await client.post("/v1/chat/completions", json={"messages": messages})).json()
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_embeddings_are_unit_vectors_of_the_tokens_and_come_as_base64_too() -> None:
    """The OpenAI client asks for base64 unless told otherwise."""
    import base64
    import struct

    options = EmulatorOptions(profile="instant", embeddings=True)
    async with client_of(options) as client:
        plain, packed = [
            (await client.post("/v1/embeddings", json={"input": ["a b", "c"], **more})).json()
            for more in ({}, {"encoding_format": "base64"})
        ]
    vectors = [item["embedding"] for item in plain["data"]]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1)
    assert vectors[0] != vectors[1]
    unpacked = struct.unpack("<64f", base64.b64decode(packed["data"][0]["embedding"]))
    assert list(unpacked) == pytest.approx(vectors[0])
    assert plain["usage"]["completion_tokens"] == 0


async def test_a_sample_without_seed_differs_from_the_next_and_with_seed_does_not() -> None:
    """Tests of what is deterministic would pass for the wrong reason."""
    async with client_of() as client:

        async def text(**more: Any) -> str:
            body = {"prompt": "a", "max_tokens": 8, "temperature": 1, **more}
            answer = await client.post("/v1/completions", json=body)
            return str(answer.json()["choices"][0]["text"])

        assert await text() != await text()
        assert await text(seed=5) == await text(seed=5)
        assert await text(temperature=0) == await text(temperature=0)
