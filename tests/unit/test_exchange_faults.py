"""What an exchange says of the engine when it ends: whose fault it was, or nobody's."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.api.exchange import RetryElsewhereError
from gateway.core.messages import Fault, Outcome
from gateway.errors import GatewayError
from tests.unit.test_exchange import Bench, begun

CHUNK = b'data: {"id":"1","choices":[{"delta":{"content":"a"}}]}\n\n'
ERROR_500 = b'data: {"error":{"message":"EngineCore encountered an issue.","code":500}}\n\n'
ERROR_400 = b'data: {"error":{"message":"too long","code":400}}\n\n'
BUSY = b'{"error":{"message":"The engine is currently busy.","code":503}}'
DONE = b"data: [DONE]\n\n"
LEAVING = b'{"error":{"message":"cannot schedule new futures after shutdown","code":500}}'


def answers(status: bytes, body: bytes) -> Callable[[Bench], None]:
    """The engine answers so as a whole."""

    def act(bench: Bench) -> None:
        bench.engine.begins(status, b"application/json")
        bench.engine.says(body)
        bench.engine.ends()

    return act


def streams(*pieces: bytes, ends: bool = True) -> Callable[[Bench], None]:
    """The engine streams these, and then ends or breaks off."""

    def act(bench: Bench) -> None:
        bench.engine.begins()
        bench.engine.says(*pieces)
        if ends:
            bench.engine.ends()
        else:
            bench.engine.connection.connection_lost(None)

    return act


async def ended(act: Callable[[Bench], None], *, is_stream: bool = True) -> Bench:
    """An exchange with an engine that does so."""
    bench = await begun(streams=is_stream)
    act(bench)
    await bench.settle()
    await asyncio.wait([bench.task])
    if not bench.task.cancelled() and bench.task.exception() is not None:
        assert isinstance(bench.task.exception(), GatewayError | RetryElsewhereError)
    return bench


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    ("status", "body", "outcome", "fault"),
    [
        (b"500 X", b'{"error":{"message":"boom"}}', Outcome.FAILED, Fault.SERVER_ERROR),
        (b"502 X", b"<html>Bad Gateway</html>", Outcome.FAILED, Fault.SERVER_ERROR),
        (b"503 X", b'{"error":"sleeping"}', Outcome.FAILED, Fault.SERVER_ERROR),
        (b"500 X", LEAVING, Outcome.FAILED, Fault.DRAINING),
        (b"400 X", b'{"error":{"message":"bad"}}', Outcome.REJECTED, None),
        (b"429 X", b'{"error":{"message":"slow down"}}', Outcome.REJECTED, None),
        (b"401 X", b'{"error":"Unauthorized"}', Outcome.FAILED, None),
    ],
)
async def test_a_refusal_tells_whose_fault_it_is(
    *, is_stream: bool, status: bytes, body: bytes, outcome: Outcome, fault: Fault | None
) -> None:
    """A client's 400s must never take a replica out; an engine that leaves is no broken one."""
    bench = await ended(answers(status, body), is_stream=is_stream)
    assert [each for each, _ in bench.ticket.ends] == [outcome]
    assert bench.ticket.faults == [fault]


@pytest.mark.parametrize(
    ("act", "outcome", "fault"),
    [
        (streams(CHUNK, ends=False), Outcome.FAILED, Fault.BROKE_OFF),
        (streams(CHUNK), Outcome.FAILED, Fault.BROKE_OFF),
        (streams(ends=False), Outcome.FAILED, Fault.BROKE_OFF),
        (streams(CHUNK, ERROR_500, DONE), Outcome.FAILED, Fault.SERVER_ERROR),
        (streams(CHUNK, ERROR_500, ends=False), Outcome.FAILED, Fault.SERVER_ERROR),
        (streams(CHUNK, ERROR_400, DONE), Outcome.FAILED, None),
        (streams(ERROR_500, DONE), Outcome.FAILED, Fault.SERVER_ERROR),
        (streams(ERROR_400, DONE), Outcome.REJECTED, None),
        (streams(CHUNK, DONE), Outcome.DONE, None),
    ],
    ids=["broken", "without its end", "broken before it began", "error", "error and broken",
         "error of the client's", "error at once", "error of the client's at once", "good"],
)  # fmt: skip
async def test_a_stream_tells_whose_fault_its_end_is(
    act: Callable[[Bench], None], outcome: Outcome, fault: Fault | None
) -> None:
    """`[DONE]` follows a crash of the engine, too."""
    bench = await ended(act)
    assert (bench.ticket.ends[0][0], bench.ticket.faults[0]) == (outcome, fault)


async def test_busy_is_nobodys_fault() -> None:
    """It goes back to its place."""
    bench = await begun()
    answers(b"503 X", BUSY)(bench)
    await bench.settle()
    assert (bench.ticket.bounces, bench.ticket.faults) == (1, [])
    bench.task.cancel()
    await asyncio.wait([bench.task])


@pytest.mark.parametrize("has_begun", [True, False])
async def test_an_engine_that_is_given_up_has_stalled(has_begun: bool) -> None:
    """And it is left: what it still does for nobody would be done twice."""
    bench = await begun()
    if has_begun:
        bench.engine.begins()
        bench.engine.says(CHUNK)
        await bench.settle()
    await bench.give_up()
    assert bench.ticket.faults[0] is Fault.STALLED
    assert bench.engine.socket.is_ended


@pytest.mark.parametrize("has_begun", [True, False])
async def test_what_ends_for_our_own_reasons_is_not_the_engines_fault(has_begun: bool) -> None:
    """A client that leaves, a client that reads nothing, a fault of the gateway itself."""
    bench = await begun()
    if has_begun:
        bench.engine.begins()
        bench.engine.says(CHUNK)
        await bench.settle()
    bench.exchange.close()
    await bench.settle()
    assert set(bench.ticket.faults) <= {None}
    bench.task.cancel()
    await asyncio.wait([bench.task])
    assert set(bench.ticket.faults) <= {None}
