"""Rules on bodies through a real gateway: media, templates, salts, and what steers an engine."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.api.routes import CHAT, MESSAGES
from gateway.emulator.options import EmulatorOptions
from gateway.tenancy.keys import key_hash
from tests.support.asks import EVERY, Ask, error_in
from tests.support.house import House, house

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINE = EmulatorOptions(profile="instant", max_num_seqs=8, embeddings=True)
INSIDE = "http://169.254.169.254/latest/meta-data"
IMAGE = "data:image/png;base64,iVBORw0KGgo="
KEYS = [
    {"tenant": "acme", "user": "alice", "key_sha256": key_hash(b"fg-alice")},
    {"tenant": "acme", "user": "bob", "allows_chat_template": True,
     "key_sha256": key_hash(b"fg-bob")},
    {"tenant": "other", "key_sha256": key_hash(b"fg-other")},
]  # fmt: skip
JSON_ASKS = [ask for ask in EVERY if not ask.route.is_form]
GENERATING = [ask for ask in JSON_ASKS if ask.route.uses_gpu]
FRONT_ENDS = [ask for ask in JSON_ASKS if not ask.route.uses_gpu]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built() -> AsyncIterator[House]:
    """A gateway with keys, as it is without further settings, before one engine."""
    async with house(ENGINE, keys=KEYS, media_urls=["images.example.org"]) as whole:
        yield whole


@pytest.fixture
def alone(built: House) -> House:
    """The same, and nothing was asked of it yet."""
    built.forget()
    return built


async def sent(house: House, ask: Ask, who: str = "alice", **changes: Any) -> dict[str, Any]:
    """The members that reached the engine."""
    house.forget()
    answer = await house.post(ask, ask.body(**changes), authorization=f"Bearer fg-{who}")
    assert answer.status_code == 200, answer.text
    (seen,) = house.seen
    members: dict[str, Any] = json.loads(seen.body)
    return members


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_an_internal_address_never_reaches_an_engine(alone: House, ask: Ask) -> None:
    """The metadata service of a cloud hands out credentials to whoever asks from inside."""
    part = {"type": "image_url", "image_url": {"url": INSIDE}}
    messages = [{"role": "user", "content": [part]}]
    answer = await alone.post(ask, ask.body(messages=messages), authorization="Bearer fg-alice")
    assert answer.status_code == 400
    error = error_in(ask, answer.content)
    if not ask.route.is_anthropic:
        assert error["param"] == "messages[0].content[0].image_url.url"
    assert not alone.seen
    assert (await alone.settle()).outcome == "invalid_request"


async def test_media_of_the_body_and_of_allowed_hosts_go_through_untouched(alone: House) -> None:
    """What is allowed must arrive as it was written."""
    for url in (IMAGE, "https://images.example.org/a.png"):
        part = {"type": "image_url", "image_url": {"url": url}}
        messages = [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]
        assert (await sent(alone, Ask(CHAT), messages=messages))["messages"] == messages
    source = {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo=",
                                          "media_type": "image/png"}}  # fmt: skip
    messages = [{"role": "user", "content": [source]}]
    assert (await sent(alone, Ask(MESSAGES), messages=messages))["messages"] == messages


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_a_template_is_refused_on_every_route_but_for_a_key_that_may(
    alone: House, ask: Ask
) -> None:
    """On one route forgotten, anybody's loop runs in the engine's front end."""
    body = ask.body(chat_template="{{ 1 }}")
    answer = await alone.post(ask, body, authorization="Bearer fg-alice")
    assert answer.status_code == 400
    assert "chat_template" in error_in(ask, answer.content)["message"]
    assert not alone.seen
    assert (await sent(alone, ask, "bob", chat_template="{{ 1 }}"))["chat_template"] == "{{ 1 }}"


@pytest.mark.parametrize("ask", GENERATING, ids=str)
async def test_each_tenants_requests_carry_its_own_salt(alone: House, ask: Ask) -> None:
    """One tenant could otherwise time what another one asked."""
    salts = [(await sent(alone, ask, who))["cache_salt"] for who in ("alice", "bob", "other")]
    assert salts[0] == salts[1] != salts[2]
    stolen = await sent(alone, ask, "other", cache_salt=salts[0])
    assert stolen["cache_salt"] not in salts
    theirs = {**stolen, "cache_salt": None}
    assert theirs == {**await sent(alone, ask, "other"), "cache_salt": None}


@pytest.mark.parametrize("ask", FRONT_ENDS, ids=str)
async def test_what_needs_no_cache_is_not_salted(alone: House, ask: Ask) -> None:
    """Its body stays as it was written."""
    assert await sent(alone, ask) == ask.fields


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_nothing_that_steers_an_engine_gets_through(alone: House, ask: Ask) -> None:
    """In whatever company it comes."""
    steering = {"priority": -5, "kv_transfer_params": {"x": 1}, "request_id": "r"}
    members = await sent(alone, ask, "bob", chat_template="x", cache_salt="s", **steering)
    assert not members.keys() & steering.keys()


@pytest.mark.parametrize(("isolation", "apart"), [("none", False), ("user", True)])
async def test_whose_requests_share_is_for_the_operator_to_say(isolation: str, apart: bool) -> None:
    """Some trust each other, some do not even trust their colleagues."""
    async with house(ENGINE, keys=KEYS, cache_isolation=isolation) as whole:
        salts = [(await sent(whole, Ask(CHAT), who)).get("cache_salt") for who in ("alice", "bob")]
        own = (await sent(whole, Ask(CHAT), "other", cache_salt="mine"))["cache_salt"]
    assert (salts[0] != salts[1]) is apart
    assert (own != "mine") is apart
