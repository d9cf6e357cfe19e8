"""Responses that an engine keeps: found by who made them, on the one engine that has them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.api.routes import RESPONSES
from gateway.emulator.options import EmulatorOptions
from gateway.tenancy.keys import key_hash
from tests.support.asks import Ask, ends_of
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.house import House, house
from tests.support.raw_client import exchange, request
from tests.support.raw_engine import SSE_HEAD, RawEngine, chunked, running_raw_engine
from tests.support.tap import Exchanged

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINE = EmulatorOptions(profile="instant", api_key="engines-own")
ASK = Ask(RESPONSES)


def bearer(key: str) -> dict[str, str]:
    """Headers of whoever has this key."""
    return {"authorization": f"Bearer {key}"}


ALICE, BOB, EVE, APP = map(bearer, ("fg-alice", "fg-bob", "fg-eve", "fg-app"))
KEYS = [
    {"tenant": tenant, "user": user, "tier": "standard", "key_sha256": key_hash(key.encode()),
     "speaks_for_users": user == "app"}
    for tenant, user, key in (
        ("acme", "alice", "fg-alice"), ("acme", "bob", "fg-bob"), ("umbrella", "alice", "fg-eve"),
        ("acme", "app", "fg-app"),
    )
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built() -> AsyncIterator[House]:
    """A gateway before two engines that keep responses, for all tests of this file."""
    options: dict[str, Any] = {
        "keys": KEYS,
        "cache_isolation": "none",
        "environ": {"KEY": "engines-own"},
    }
    async with house(ENGINE, ENGINE, replica={"api_key_env": "KEY"}, **options) as whole:
        yield whole


@pytest.fixture
def pair(built: House) -> House:
    """The same, and nothing was asked of it yet."""
    built.forget()
    return built


async def made(pair: House, key: dict[str, str] = ALICE, **fields: Any) -> tuple[str, int]:
    """(id of a new response, the index of the engine that has it)."""
    answer = await pair.post(ASK, ASK.body(**fields), **key)
    assert answer.status_code == 200, answer.text
    (holder,) = (index for index, tap in enumerate(pair.taps) if tap.seen)
    for tap in pair.taps:
        tap.seen.clear()
    ident: str = answer.json()["id"]
    return ident, holder


def only_seen(pair: House, holder: int) -> Exchanged:
    """The one request that reached an engine, which must be that one."""
    assert [len(tap.seen) for tap in pair.taps] == [holder == 0, holder == 1]
    return pair.taps[holder].seen[0]


async def test_a_response_is_fetched_byte_for_byte_from_whoever_has_it(pair: House) -> None:
    """It lies in the memory of one engine; any other one would say that it does not exist."""
    for _ in range(4):
        ident, holder = await made(pair)
        answer = await pair.http.get(f"/v1/responses/{ident}", headers=ALICE)
        seen = only_seen(pair, holder)
        assert (answer.status_code, answer.content) == (200, seen.answer)
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert answer.json()["id"] == ident
        pair.forget()


async def test_a_streamed_response_is_found_too(pair: House) -> None:
    """Its id stands in the first event, and is known before its client can ask for it."""
    ask = Ask(RESPONSES, streams=True)
    answer = await pair.post(ask, **ALICE)
    (holder,) = (index for index, tap in enumerate(pair.taps) if tap.seen)
    ident = answer.text.partition('"id":"')[2].partition('"')[0]
    pair.forget()
    fetched = await pair.http.get(f"/v1/responses/{ident}", headers=ALICE)
    only_seen(pair, holder)
    assert fetched.json()["status"] == "incomplete"


async def test_a_response_of_somebody_else_does_not_exist(pair: House) -> None:
    """Nor does one that was never made: who guesses ids learns nothing."""
    ident, _ = await made(pair)
    unknown = ident[:-4] + "0000"
    bodies = set()
    for headers, asked in ((BOB, ident), (EVE, ident), (ALICE, unknown), (BOB, unknown)):
        for method, path in (("GET", asked), ("POST", f"{asked}/cancel")):
            answer = await pair.http.request(method, f"/v1/responses/{path}", headers=headers)
            assert answer.status_code == 404
            bodies.add(answer.text.replace(asked, "ID"))
        before = await pair.post(ASK, ASK.body(previous_response_id=asked), **headers)
        assert before.status_code == 404
        bodies.add(before.text.replace(asked, "ID"))
    (body,) = bodies
    assert json.loads(body)["error"]["code"] == "response_not_found"
    assert pair.seen == [], "no engine is asked"


async def test_users_that_one_key_speaks_for_are_told_apart(pair: House) -> None:
    """An application's users must not read one another's answers."""
    carol, dave = ({**APP, "x-fairgate-user": user} for user in ("carol", "dave"))
    ident, holder = await made(pair, carol)
    assert (await pair.http.get(f"/v1/responses/{ident}", headers=dave)).status_code == 404
    assert (await pair.http.get(f"/v1/responses/{ident}", headers=carol)).status_code == 200
    only_seen(pair, holder)


async def test_a_key_is_needed(pair: House) -> None:
    """The id alone is no secret."""
    ident, _ = await made(pair)
    for headers in ({}, bearer("fg-wrong")):
        answer = await pair.http.get(f"/v1/responses/{ident}", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert pair.seen == []


async def test_a_response_in_the_background_is_cancelled_where_it_runs(pair: House) -> None:
    """Its engine would work on it to the end."""
    for each in pair.engines:
        each.faults.inject("freeze")
    ident, holder = await made(pair, background=True, max_output_tokens=4000)
    engine = pair.engines[holder].engine
    assert engine.running + engine.waiting == 1
    answer = await pair.http.post(f"/v1/responses/{ident}/cancel", headers=ALICE)
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    seen = only_seen(pair, holder)
    assert (seen.method, seen.target) == ("POST", f"/v1/responses/{ident}/cancel")
    assert answer.content == seen.answer
    await eventually(lambda: engine.running + engine.waiting == 0)


async def test_what_the_engine_refuses_is_passed_on_in_its_words(pair: House) -> None:
    """Only it knows that a response is finished."""
    ident, _ = await made(pair)
    answer = await pair.http.post(f"/v1/responses/{ident}/cancel", headers=ALICE)
    assert answer.status_code == 400
    assert "synchronous" in answer.json()["error"]["message"]


async def test_a_conversation_goes_on_where_it_began_and_only_there(pair: House) -> None:
    """No other engine knows what was said before."""
    for _ in range(4):
        ident, holder = await made(pair)
        for _ in range(3):
            body = ASK.body(previous_response_id=ident)
            answer = await pair.post(ASK, body, **ALICE)
            assert answer.status_code == 200
            assert answer.json()["previous_response_id"] == ident
            seen = only_seen(pair, holder)
            assert seen.body == body
            ident = answer.json()["id"]
            pair.forget()


async def test_a_conversation_whose_engine_fails_is_tried_nowhere_else(pair: House) -> None:
    """The other engine would answer 404, and hide what really happened."""
    ident, holder = await made(pair)
    pair.engines[holder].faults.inject("error-500")
    answer = await pair.post(ASK, ASK.body(previous_response_id=ident), **ALICE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    only_seen(pair, holder)
    fetched = await pair.http.get(f"/v1/responses/{ident}", headers=ALICE)
    assert (fetched.status_code, fetched.json()["error"]["code"]) == (502, "upstream_failed")


STRANGE = (
    "", "..", "../../sleep", "%2e%2e/%2e%2e/sleep", "..%2f..%2fsleep", "a/b", "a%2Fb", "resp_1%00",
    "resp_1%0d%0ax: y", "r%C3%A9sp", "resp 1", "x" * 129, "resp_1/input_items", "resp_1/cancel/",
    "/cancel", "resp_1;a=b", "resp_1%3Fa=b", "resp_1%23", ".", "*",
)  # fmt: skip


@pytest.mark.parametrize("ident", STRANGE)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_is_no_id_reaches_no_engine(pair: House, method: str, ident: str) -> None:
    """A path made of a client's words could name any route of the engine."""
    key = "authorization: Bearer fg-alice"
    asked = request(f"/v1/responses/{ident}", key, method=method, body=b"")
    answer = await exchange(pair.running.url, asked)
    # uvicorn itself refuses a target with a space in it
    assert answer.status == (400 if " " in ident else 404)
    assert answer.status == 400 or answer.json["error"]["code"] in (
        "response_not_found", "not_found",
    )  # fmt: skip
    assert pair.seen == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
async def test_other_methods_are_refused_and_reach_no_engine(pair: House, method: str) -> None:
    """An engine might delete by one."""
    ident, _ = await made(pair)
    answer = await pair.http.request(method, f"/v1/responses/{ident}", headers=ALICE)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"
    cancel = await pair.http.get(f"/v1/responses/{ident}/cancel", headers=ALICE)
    assert (cancel.status_code, cancel.headers["allow"]) == (405, "POST")
    assert pair.seen == []


async def test_only_known_words_of_a_query_reach_the_engine(pair: House) -> None:
    """What an engine makes of the others is not known here."""
    ident, holder = await made(pair)
    query = "include[]=a%26b&api_key=x&starting_after=3&stream=false&priority=9&include=c%20d&x"
    answer = await pair.http.get(f"/v1/responses/{ident}?{query}", headers=ALICE)
    assert answer.status_code == 200
    path, _, passed = only_seen(pair, holder).target.partition("?")
    assert path == f"/v1/responses/{ident}"
    assert httpx.QueryParams(passed).multi_items() == [
        ("include[]", "a&b"), ("starting_after", "3"), ("stream", "false"), ("include", "c d"),
    ]  # fmt: skip


async def test_the_clients_own_headers_stay_here(pair: House) -> None:
    """Credentials and cookies are the gateway's users', not its engines'."""
    ident, holder = await made(pair)
    own = {"cookie": "a=b", "x-api-key": "fg-alice", "x-vllm-priority": "1", "x-request-id": "me"}
    await pair.http.get(f"/v1/responses/{ident}", headers={**ALICE, **own})
    seen = only_seen(pair, holder)
    assert seen.header == {
        "host": pair.taps[holder].url.removeprefix("http://"), "user-agent": "fairgate",
        "accept-encoding": "identity", "authorization": "Bearer engines-own",
    }  # fmt: skip


async def test_leaving_while_a_response_is_fetched_ends_the_fetching(pair: House) -> None:
    """The engine would be held by a question that nobody waits for."""
    ident, holder = await made(pair)
    pair.engines[holder].faults.inject("stall")
    fetching = asyncio.create_task(pair.http.get(f"/v1/responses/{ident}", headers=ALICE))
    await eventually(lambda: pair.taps[holder].seen)
    fetching.cancel()
    load = 1
    async with asyncio.timeout(5):
        while load:
            answer = await pair.http.get(f"{pair.engines[holder].url}/load")
            load = answer.json()["server_load"]
    assert not only_seen(pair, holder).is_answered


async def test_a_response_whose_engine_was_removed_is_gone(pair: House) -> None:
    """Nobody else can have it, and the client learns that at once. This takes an engine away."""
    ident, holder = await made(pair)
    fleet = pair.running.gateway.fleet
    (name,) = (n for n in fleet.names() if n.endswith(pair.taps[holder].url.rpartition(":")[2]))
    fleet.remove(name)
    fetched = await pair.http.get(f"/v1/responses/{ident}", headers=ALICE)
    gone_on = await pair.post(ASK, ASK.body(previous_response_id=ident), **ALICE)
    assert (fetched.status_code, gone_on.status_code) == (404, 404)
    assert fetched.json() == gone_on.json()
    assert gone_on.json()["error"]["code"] == "response_not_found"
    assert pair.seen == []


CREATED = b'{"id":"resp_7","model":"raw","service_tier":"auto","status":"queued"}'
EVENTS = (
    b'event: response.created\ndata: {"response":{"id":"resp_7","model":"raw"}}\n\n'
    b'event: response.output_text.delta\ndata: {"delta":"\xe5\x8c\x97 \\"model\\":\\"raw\\""}\n\n'
    b'event: response.completed\ndata: {"response":{"id":"resp_7","model":"raw"}}\n\n'
)


@pytest_asyncio.fixture(loop_scope="module")
async def raw() -> AsyncIterator[RawEngine]:
    """An engine whose every word is the test's."""
    async with running_raw_engine() as engine:
        engine.writes = [_whole(CREATED)]
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def aliased(raw: RawEngine) -> AsyncIterator[Running]:
    """A gateway before it, with an alias for its model."""
    models = [{"name": "raw", "aliases": ["alias"], "replicas": [raw.url]}]
    async with running_gateway(models=models, wait_ready=False) as running:
        await eventually(lambda: running.gateway.scheduler.replicas)
        yield running


def _whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


async def fetched(running: Running, raw: RawEngine, *writes: bytes, **fields: Any) -> bytes:
    """Make a response with `fields`, then fetch it; the engine answers that with `writes`."""
    async with client(running) as http:
        made = await http.post("/v1/responses", content=ASK.body(**fields))
        assert made.status_code == 200
        raw.gets = writes
        answer = await http.get("/v1/responses/resp_7?stream=true")
    assert answer.status_code == 200
    return answer.content


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_fetched_stream_passes_byte_for_byte(
    aliased: Running, raw: RawEngine, size: int
) -> None:
    """Cut wherever the network cuts it, inside characters and events."""
    pieces = [chunked(EVENTS[at : at + size]) for at in range(0, len(EVENTS), size)]
    content = await fetched(aliased, raw, SSE_HEAD, *pieces, b"0\r\n\r\n", model="raw")
    assert content == EVENTS


@pytest.mark.parametrize("size", [1, 1000])
async def test_alias_and_tier_are_those_of_the_request_that_made_it(
    aliased: Running, raw: RawEngine, size: int
) -> None:
    """A client that compares what it fetched with what it was told would find two models."""
    pieces = [chunked(EVENTS[at : at + size]) for at in range(0, len(EVENTS), size)]
    fields = {"model": "alias", "service_tier": "flex"}
    content = await fetched(aliased, raw, SSE_HEAD, *pieces, b"0\r\n\r\n", **fields)
    assert content.count(b'"model":"alias"') == content.count(b'"service_tier":"flex"') == 2
    assert content.count(rb"\"model\":\"raw\"") == 1, "what the model says is not touched"
    plain = json.loads(await fetched(aliased, raw, _whole(CREATED), **fields))
    assert plain == {**json.loads(CREATED), "model": "alias", "service_tier": "flex"}


async def test_a_fetched_stream_that_breaks_ends_with_one_error(
    aliased: Running, raw: RawEngine
) -> None:
    """The client would wait for the end of a response that nobody sends any more."""
    raw.closes_gets = True
    content = await fetched(aliased, raw, SSE_HEAD, chunked(EVENTS[:100]), model="raw")
    assert ends_of(Ask(RESPONSES, streams=True), content) == ["error"]
    assert content.startswith(EVENTS[:75])


async def test_a_fetched_stream_that_ends_without_an_end_is_no_success(
    aliased: Running, raw: RawEngine
) -> None:
    """Its client would take the beginning of an answer for all of it."""
    beginning = EVENTS[: EVENTS.rindex(b"event:")]
    half = b"event: response.output_text.delta\n"
    writes = (SSE_HEAD, chunked(beginning + half), b"0\r\n\r\n")
    content = await fetched(aliased, raw, *writes, model="raw")
    assert content.startswith(beginning + b"event: error\ndata: {")
    assert ends_of(Ask(RESPONSES, streams=True), content) == ["error"]


async def test_a_fetched_stream_is_ended_by_one_error_when_the_gateway_leaves(
    aliased: Running, raw: RawEngine
) -> None:
    """It would wait for the rest of a response that nobody brings any more."""
    raw.keeps_gets_open = True
    fetching = asyncio.create_task(
        fetched(aliased, raw, SSE_HEAD, chunked(EVENTS[:100]), model="raw")
    )
    await eventually(lambda: raw.gets_told)
    await asyncio.sleep(0.1)
    aliased.gateway.end()
    content = await fetching
    assert ends_of(Ask(RESPONSES, streams=True), content) == ["error"]
    assert content.count(b'"draining"') == 2, "in the event, and in its error"
    assert content.startswith(EVENTS[: EVENTS.index(b"\n\n") + 2] + b"event: error\n")


async def test_a_response_that_is_fetched_when_the_gateway_leaves_is_told_elsewhere(
    aliased: Running, raw: RawEngine
) -> None:
    """503 with a Retry-After: another gateway stands there by then."""
    raw.keeps_gets_open = True
    async with client(aliased) as http:
        await http.post("/v1/responses", content=ASK.body(model="raw"))
        raw.gets = [_whole(CREATED)[:50]]
        fetching = asyncio.create_task(http.get("/v1/responses/resp_7"))
        await eventually(lambda: raw.gets_told)
        await asyncio.sleep(0.1)
        aliased.gateway.end()
        answer = await fetching
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert answer.headers["retry-after"] == "1"


async def test_an_engine_that_repeats_an_id_hands_nothing_over(
    aliased: Running, raw: RawEngine
) -> None:
    """The first one made it; a second user that gets the same id does not own it."""
    async with client(aliased) as http:
        for user in ("first", "second"):
            headers = {"x-fairgate-user": user}
            answer = await http.post(
                "/v1/responses", content=ASK.body(model="raw"), headers=headers
            )
            assert answer.json()["id"] == "resp_7"
        raw.gets = [_whole(CREATED)]
        url = "/v1/responses/resp_7"
        first = await http.get(url, headers={"x-fairgate-user": "first"})
        second = await http.get(url, headers={"x-fairgate-user": "second"})
    assert (first.status_code, second.status_code) == (200, 404)
