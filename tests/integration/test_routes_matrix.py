"""Every route, streamed and not, through everything that an engine can do to it.

Whatever happens: no slot stays taken, the client gets the engine's bytes and exactly one end.
"""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from gateway.emulator.options import EmulatorOptions
from tests.support.asks import EVERY, STREAMS, Ask, ends_of, error_in, last_error_in
from tests.support.house import House, house

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINE = EmulatorOptions(profile="instant", embeddings=True)
every = pytest.mark.parametrize("ask", EVERY, ids=str)
every_stream = pytest.mark.parametrize("ask", STREAMS, ids=str)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_engine() -> AsyncIterator[House]:
    """A gateway before one engine, for all tests of this file."""
    async with house(ENGINE, retries__continuation_wait_s=0.2) as built:
        yield built


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_engines() -> AsyncIterator[House]:
    """A gateway before two engines, for all tests of this file."""
    async with house(ENGINE, ENGINE) as built:
        yield built


@pytest.fixture
def alone(one_engine: House) -> House:
    """One engine without faults, of which nothing was asked yet."""
    one_engine.forget()
    return one_engine


@pytest.fixture
def pair(two_engines: House) -> House:
    """The same with two."""
    two_engines.forget()
    return two_engines


def assert_whole(ask: Ask, answer: httpx.Response, engines: bytes) -> None:
    """A success, byte for byte as the engine said it, with one end."""
    assert answer.status_code == 200
    assert answer.content == engines
    assert (answer.headers.get("content-length") is None) is ask.streams
    if ask.streams:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert ends_of(ask, answer.content) == ["done"]
    else:
        assert answer.headers["content-type"] == "application/json"


def assert_refused(ask: Ask, answer: httpx.Response, status: int, code: str) -> None:
    """One JSON error in the shape of the route; never a stream that begins with an error."""
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert error_in(ask, answer.content)["code"] == code


def assert_broken(ask: Ask, answer: httpx.Response, engines: bytes, code: str) -> None:
    """What the engine had said, and then one error event as the only end."""
    assert answer.status_code == 200
    assert ends_of(ask, answer.content) in (["error"], ["error", "done"])
    assert last_error_in(ask, answer.content)["code"] == code
    said = answer.content[
        : answer.content.rindex(b"event: error\n" if ask.is_named else b"data: {")
    ]
    assert engines.startswith(said.rstrip(b"\n"))
    assert said.strip(), "something had been passed on"


@every
async def test_what_the_engine_says_is_what_the_client_gets(alone: House, ask: Ask) -> None:
    """A client that hashes or signs what it reads would notice any change."""
    answer = await alone.post(ask)
    record = await alone.settle()
    (seen,) = alone.seen
    assert_whole(ask, answer, seen.answer)
    assert (record.outcome, record.status, record.attempts) == ("done", 200, 1)
    assert (record.route, record.model) == (ask.route.name, "emulated")
    assert_used(ask, (record.usage and record.usage.output_tokens) or 0)


def assert_used(ask: Ask, output_tokens: int) -> None:
    """Whoever generates is charged; speech that is not streamed names no tokens."""
    if ask.route.decodes and (ask.streams or not ask.route.is_form):
        assert output_tokens > 0


@every
async def test_what_the_engine_refuses_is_refused_in_its_words(alone: House, ask: Ask) -> None:
    """The engine knows best why a request is wrong, and no other one would take it."""
    answer = await alone.post(ask, ask.wrong())
    record = await alone.settle()
    (seen,) = alone.seen
    assert 400 <= seen.status < 500
    assert_refused(ask, answer, seen.status, record.outcome)
    assert error_in(ask, answer.content)["message"] == json.loads(seen.answer)["error"]["message"]
    assert (record.status, record.attempts, record.usage) == (seen.status, 1, None)


@every
async def test_a_busy_engine_costs_a_moment_and_nothing_else(alone: House, ask: Ask) -> None:
    """Backpressure: the request keeps its place, and its client never learns."""
    alone.engines[0].faults.inject("busy*1")
    answer = await alone.post_and(ask, alone.end_rest, when=alone.has_bounced)
    record = await alone.settle()
    refused, served = alone.seen
    assert refused.status == 503
    assert_whole(ask, answer, served.answer)
    assert refused.header["x-request-id"] != served.header["x-request-id"]
    assert (record.outcome, record.attempts) == ("done", 1)


@every_stream
async def test_a_stream_that_lost_the_race_for_a_place_begins_anew(alone: House, ask: Ask) -> None:
    """vLLM sends its 200 first, and then the busy error in place of tokens."""
    alone.engines[0].faults.inject("busy-race*1")
    if ask.route.is_anthropic:  # the engine tells it there in other words, and without its code
        assert_refused(ask, await alone.post(ask), 502, "upstream_failed")
        assert (await alone.settle()).outcome == "upstream_failed"
        return
    answer = await alone.post_and(ask, alone.end_rest, when=alone.has_bounced)
    record = await alone.settle()
    _, served = alone.seen
    assert_whole(ask, answer, served.answer)
    assert (record.outcome, record.attempts) == ("done", 1)


@pytest.mark.parametrize("fault", ["error-500", "draining", "die-before"])
@every
async def test_a_failure_of_the_only_engine_is_told_once(
    alone: House, ask: Ask, fault: str
) -> None:
    """502 with the reason, in the shape of the route, and not a patience that runs out."""
    alone.engines[0].faults.inject(fault)
    answer = await alone.post(ask)
    record = await alone.settle()
    assert_refused(ask, answer, 502, "upstream_failed")
    assert (record.outcome, record.status) == ("upstream_failed", 502)


@pytest.mark.parametrize("fault", ["error-500", "die-before", "die-midstream:0"])
@every
async def test_a_failure_before_the_first_event_is_made_good_elsewhere(
    pair: House, ask: Ask, fault: str
) -> None:
    """Nothing of it had reached the client, so the client need not know."""
    session = {"x-session-id": f"{ask}-{fault}"}
    await pair.post(ask, **session)
    await pair.settle()
    chosen = 0 if pair.taps[0].seen else 1
    pair.forget()
    pair.engines[chosen].faults.inject(fault)
    answer = await pair.post(ask, **session)
    record = await pair.settle()
    assert pair.taps[chosen].seen, "a session goes where it was before"
    (served,) = pair.taps[1 - chosen].seen
    assert_whole(ask, answer, served.answer)
    assert (record.outcome, record.attempts) == ("done", 2)


@pytest.mark.parametrize("fault", ["die-midstream", "close-midstream"])
@every
async def test_an_answer_that_dies_is_never_taken_for_a_whole_one(
    alone: House, ask: Ask, fault: str
) -> None:
    """Clients take a stream that merely ends for a success, and half a JSON text for nothing."""
    alone.engines[0].faults.inject(f"{fault}:{ask.begins_after}")
    answer = await alone.post(ask)
    record = await alone.settle()
    assert record.outcome == "upstream_failed"
    assert len(alone.seen) == 1
    if ask.streams:
        assert_broken(ask, answer, alone.seen[-1].answer, "upstream_failed")
        assert record.status == 200
        assert_used(ask, (record.usage and record.usage.output_tokens) or 0)
    else:
        assert_refused(ask, answer, 502, "upstream_failed")


@every_stream
async def test_an_engines_own_error_event_is_the_only_end(alone: House, ask: Ask) -> None:
    """A second error on top of it would hide the first."""
    alone.engines[0].faults.inject(f"error-midstream:{ask.begins_after}")
    answer = await alone.post(ask)
    record = await alone.settle()
    (seen,) = alone.seen
    assert record.outcome != "done"
    assert answer.content == seen.answer
    assert ends_of(ask, answer.content)[0] == "error"


@every
async def test_an_engine_that_stalls_is_given_up_with_one_error(alone: House, ask: Ask) -> None:
    """Its client would wait for ever, and its slot would be lost."""
    alone.engines[0].faults.inject(f"stall:{ask.begins_after}")
    begun = alone.is_passing if ask.streams else alone.is_owed
    answer = await alone.post_and(ask, alone.give_up, when=begun)
    record = await alone.settle()
    assert record.outcome == "upstream_timeout"
    if ask.streams:
        assert_broken(ask, answer, alone.seen[-1].answer, "upstream_timeout")
    else:
        assert_refused(ask, answer, 504, "upstream_timeout")


@every_stream
async def test_an_engine_that_stalls_before_it_begins_is_given_up(alone: House, ask: Ask) -> None:
    """Nothing was passed on yet: the status can still tell it."""
    alone.engines[0].faults.inject("stall:0")
    answer = await alone.post_and(ask, alone.give_up, when=alone.is_owed)
    await alone.settle()
    assert_refused(ask, answer, 504, "upstream_timeout")
