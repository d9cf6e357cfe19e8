"""Traces through a whole gateway: what engines are told, and what is recorded of a request."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.api.routes import CHAT
from gateway.emulator.options import EmulatorOptions
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.tracing import Kind, Trace, Tracing
from tests.support.asks import Ask
from tests.support.gateway import eventually
from tests.support.house import House, house

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINE = EmulatorOptions(profile="instant")
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"
CLIENTS = {
    "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01",
    "tracestate": "congo=t61rcWkgMzE",
    "baggage": "userId=alice",
}
TOLD = re.compile(rf"00-{TRACE_ID}-([0-9a-f]{{16}})-01")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built() -> AsyncIterator[House]:
    """A gateway before two engines, for all tests of this file."""
    async with house(ENGINE, ENGINE) as found:
        yield found


@pytest.fixture
def alone(built: House) -> House:
    """The same, and nothing was asked of it yet."""
    built.forget()
    built.running.gateway.relay.tracing = None
    return built


def traced(house: House, share: float = 1.0) -> list[tuple[Trace, SettledRequest]]:
    """What is recorded from now on."""
    found: list[tuple[Trace, SettledRequest]] = []
    house.running.gateway.relay.tracing = Tracing(share, lambda *each: found.append(each))
    return found


async def test_without_traces_nothing_is_recorded_and_the_header_passes(alone: House) -> None:
    """A gateway that nobody asked to record is a piece of wire."""
    assert (await alone.post(Ask(CHAT), **CLIENTS)).status_code == 200
    (seen,) = alone.seen
    assert seen.header["traceparent"] == CLIENTS["traceparent"]
    assert (await alone.settle()).trace_id is None


@pytest.mark.parametrize("streams", [False, True])
async def test_an_engine_is_told_of_our_span_and_of_the_clients_words(
    alone: House, streams: bool
) -> None:
    """Below the client's span the engine's own would hide what waited in between."""
    finished = traced(alone)
    assert (await alone.post(Ask(CHAT, streams=streams), **CLIENTS)).status_code == 200
    await alone.settle()
    ((trace, record),) = finished
    (seen,) = alone.seen
    told = TOLD.fullmatch(seen.header["traceparent"])
    assert told is not None
    queue, engine = trace.spans
    assert (queue.kind, engine.kind) == (Kind.QUEUE, Kind.ENGINE)
    assert engine.span_id == int(told[1], 16)
    assert engine.replica == record.replica
    assert seen.header["x-request-id"] == engine.attempt_id
    assert seen.header["tracestate"] == CLIENTS["tracestate"]
    assert seen.header["baggage"] == CLIENTS["baggage"]
    assert trace.parent_id == int(SPAN_ID, 16)
    assert record.trace_id == TRACE_ID


async def test_spans_lie_within_the_request_and_follow_one_another(alone: House) -> None:
    """A picture whose parts do not add up sends people after a fault that is not there."""
    finished = traced(alone)
    await alone.post(Ask(CHAT, streams=True))
    await alone.settle()
    ((trace, record),) = finished
    queue, engine = trace.spans
    assert record.arrived_at <= queue.began_at <= engine.began_at
    assert queue.ended_at == engine.began_at
    assert engine.ended_at is not None
    assert engine.ended_at <= record.arrived_at + record.duration_s


async def test_a_retry_has_spans_of_its_own(alone: House) -> None:
    """Half of a slow answer is often the attempt that failed."""
    finished = traced(alone)
    for engine in alone.engines:
        engine.faults.inject("error-500*1")
    await alone.post(Ask(CHAT))
    await alone.settle()
    ((trace, _),) = finished
    engines = [span for span in trace.spans if span.kind is Kind.ENGINE]
    assert len(engines) == len(alone.seen) == 2
    assert len({span.attempt_id for span in engines}) == len(engines)
    told = [each.header["traceparent"].split("-")[2] for each in alone.seen]
    assert {int(each, 16) for each in told} == {span.span_id for span in engines}


async def test_one_that_an_engine_sends_back_waits_again(alone: House) -> None:
    """The wait for a busy engine is ours, not the engine's."""
    finished = traced(alone)
    for engine in alone.engines:
        engine.faults.inject("busy*1")
    await alone.post_and(Ask(CHAT), alone.end_rest, when=alone.has_bounced)
    await alone.settle()
    ((trace, _),) = finished
    kinds = [span.kind for span in trace.spans]
    assert kinds[:3] == [Kind.QUEUE, Kind.ENGINE, Kind.QUEUE]
    assert kinds[-1] is Kind.ENGINE


async def test_what_is_not_recorded_passes_as_it_came(alone: House) -> None:
    """A client that does not record must not find half a trace of its own."""
    finished = traced(alone)
    unsampled = CLIENTS["traceparent"][:-1] + "0"
    await alone.post(Ask(CHAT), traceparent=unsampled)
    await alone.settle()
    (seen,) = alone.seen
    assert seen.header["traceparent"] == unsampled
    assert finished == []


async def test_who_is_refused_at_the_door_leaves_no_trace(alone: House) -> None:
    """Whoever has no key could otherwise fill the collector."""
    finished = traced(alone)
    answer = await alone.http.post("/v1/chat/completions", content=b"{not json", headers=CLIENTS)
    assert answer.status_code == 400
    await eventually(lambda: not alone.running.gateway.relay.lives)
    assert finished == []
