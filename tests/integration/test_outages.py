"""Engines that leave, freeze, come and go: nothing new goes there, and nothing hangs there."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from gateway.api.routes import CHAT
from gateway.core.breaker import BACKOFF_S, TRIP_FAILURES
from gateway.core.health import SILENT_S
from gateway.core.messages import DrainAsked, Woke
from gateway.core.replica import Replica
from gateway.emulator.options import EmulatorOptions
from gateway.runtime.stalls import REFUSED_STALL_S, STALL_S
from tests.support.asks import Ask
from tests.support.gateway import eventually
from tests.support.house import House, house

FAST = EmulatorOptions(profile="instant", max_num_seqs=4)
SLOW = EmulatorOptions(profile="demo", max_num_seqs=4)
STREAM = Ask(CHAT, streams=True)
PLAIN = Ask(CHAT, streams=False)
REFUSED_WITHIN_S = 5.0


@pytest.fixture
async def pair() -> AsyncIterator[House]:
    """A gateway before two engines."""
    async with house(FAST, FAST, replica={"max_num_seqs": 4}) as two:
        yield two


@pytest.fixture
async def alone() -> AsyncIterator[House]:
    """A gateway before one engine."""
    async with house(FAST) as one:
        yield one


def replicas(house: House) -> list[Replica]:
    """What is believed of each engine, in their order."""
    known = house.running.gateway.scheduler.replicas
    return [known[f"127.0.0.1-{tap.port}"] for tap in house.taps]


async def told(house: House, number: int) -> dict[str, Any]:
    """What `/readyz` says of one replica."""
    answer = (await house.http.get("/readyz")).json()
    found: dict[str, Any] = answer["replicas"][replicas(house)[number].name]
    return found


async def state(house: House, number: int) -> float:
    """What the metric says of one replica's breaker."""
    name, text = replicas(house)[number].name, (await house.http.get("/metrics")).text
    wanted = f'fairgate_replica_breaker_state{{replica="{name}"}} '
    (line,) = [line for line in text.splitlines() if line.startswith(wanted)]
    return float(line.removeprefix(wanted))


def pass_time(house: House, seconds: float) -> None:
    """It is so much later, and whoever waits for that is woken."""
    house.clock.lead_s += seconds
    house.running.gateway.dispatcher.tell(Woke())


@contextmanager
def only(house: House, number: int) -> Iterator[None]:
    """Nothing new goes to any other engine inside the block."""
    tell = house.running.gateway.dispatcher.tell
    others = [each.name for each in replicas(house) if each is not replicas(house)[number]]
    for name in others:
        tell(DrainAsked(name))
    yield
    for name in others:
        tell(DrainAsked(name, draining=False))


async def trip(house: House, number: int = 0) -> None:
    """That engine fails until nothing more is sent there."""
    house.engines[number].faults.inject("die-before")
    with only(house, number):
        for _ in range(TRIP_FAILURES):
            assert replicas(house)[number].circuit.reason is None
            assert (await house.post(PLAIN)).status_code == 502
    assert replicas(house)[number].circuit.reason == "broke_off"


async def stuck_on(house: House, number: int) -> list["asyncio.Task[httpx.Response]"]:
    """Streams that were sent to that engine, which answers nothing."""
    with only(house, number):
        stuck = [asyncio.create_task(house.post(STREAM)) for _ in range(2)]
        engine = house.engines[number]
        await eventually(lambda: len(engine.received) == len(stuck))
    return stuck


async def test_an_engine_that_fails_is_left_alone_until_one_request_got_through(
    pair: House,
) -> None:
    """Each of its failures costs somebody a detour; when it is well again it must be used."""
    await trip(pair)
    received = len(pair.engines[0].received)
    for _ in range(10):
        assert (await pair.post(PLAIN)).status_code == 200
    assert len(pair.engines[0].received) == received
    says = await told(pair, 0)
    assert (says["breaker"], says["breaker_reason"]) == ("open", "broke_off")
    assert 0.0 < says["breaker_open_s"] <= BACKOFF_S
    assert [await state(pair, number) for number in (0, 1)] == [2.0, 0.0]
    pair.engines[0].faults.clear()
    pass_time(pair, BACKOFF_S)
    assert await state(pair, 0) == 1.0
    with only(pair, 0):
        for _ in range(3):
            assert (await pair.post(PLAIN)).status_code == 200
    says = await told(pair, 0)
    assert (says["breaker"], says["breaker_reason"], says["breaker_open_s"]) == (
        "closed", None, None,
    )  # fmt: skip
    assert len(pair.engines[0].received) == received + 3


async def test_what_comes_while_the_whole_fleet_rests_waits_and_is_served(alone: House) -> None:
    """An instant 503 would be wrong by two seconds."""
    await trip(alone)
    alone.engines[0].faults.clear()
    waiting = [asyncio.create_task(alone.post(PLAIN)) for _ in range(3)]
    await eventually(lambda: len(alone.running.gateway.scheduler.waiting) == 3)
    pass_time(alone, BACKOFF_S)
    answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [200, 200, 200]


async def test_requests_that_are_wrong_never_take_an_engine_out(alone: House) -> None:
    """One client with a bug would be everybody's outage."""
    for _ in range(4 * TRIP_FAILURES):
        answer = await alone.post(PLAIN, PLAIN.body().replace(b'"messages"', b'"massages"'))
        assert 400 <= answer.status_code < 500
    for _ in range(TRIP_FAILURES):
        alone.engines[0].faults.inject("busy*1")
        asking = asyncio.create_task(alone.post(PLAIN))
        await eventually(alone.has_bounced)
        alone.end_rest()
        assert (await asking).status_code == 200
    assert (await told(alone, 0))["breaker"] == "closed"


async def test_an_engine_that_leaves_gets_nothing_new_and_finishes_what_it_has() -> None:
    """vLLM with a shutdown timeout: 500 for all that is new, `/health` 200, streams go on."""
    async with house(SLOW, SLOW) as pair:
        ask = Ask(CHAT, streams=True)
        old = asyncio.create_task(pair.post(ask))
        await eventually(pair.is_passing)
        left = 0 if pair.engines[0].received else 1
        pair.engines[left].faults.inject("draining")
        answers = await asyncio.gather(*(pair.post(PLAIN) for _ in range(6)))
        assert {answer.status_code for answer in answers} == {200}
        assert (await told(pair, left))["breaker_reason"] == "draining"
        received = len(pair.engines[left].received)
        answers = await asyncio.gather(*(pair.post(PLAIN) for _ in range(4)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(pair.engines[left].received) == received
        finished = await old
    assert finished.text.endswith("data: [DONE]\n\n")
    assert '"error"' not in finished.text


async def test_streams_on_an_engine_that_closed_its_door_are_given_up(alone: House) -> None:
    """SIGTERM of a vLLM by default: the listener is gone, streams stay open, comments flow."""
    engine = alone.engines[0]
    engine.faults.inject("stall-keepalive:3")
    stream = asyncio.create_task(alone.post(STREAM))
    await eventually(lambda: alone.is_passing() and engine.received)
    (replica,) = replicas(alone)
    alone.taps[0].refuse()
    await eventually(lambda: replica.vital.refused_at is not None and replica.is_lost)
    await asyncio.sleep(0)
    assert not stream.done()
    alone.clock.lead_s += REFUSED_STALL_S + 0.5
    async with asyncio.timeout(REFUSED_WITHIN_S):
        answer = await stream
    assert "upstream_timeout" in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    await eventually(lambda: not engine.engine.running and not engine.engine.waiting)


async def test_a_frozen_engine_gets_nothing_new_and_is_used_again_at_its_first_step(
    pair: House,
) -> None:
    """SIGSTOP and SIGCONT of an engine core behind a server that answers all questions."""
    pair.engines[0].faults.inject("freeze")
    stuck = await stuck_on(pair, 0)
    first, second = replicas(pair)
    await eventually(lambda: first.vital.still_until is not None)
    pair.clock.lead_s += 2 * SILENT_S
    await eventually(lambda: first.circuit.reason == "silent")
    assert second.circuit.reason is None
    received = len(pair.engines[0].received)
    for _ in range(8):
        assert (await pair.post(STREAM)).status_code == 200
    assert len(pair.engines[0].received) == received
    pair.engines[0].faults.clear()
    await eventually(lambda: first.circuit.reason is None)
    assert all("[DONE]" in answer.text for answer in await asyncio.gather(*stuck))


async def test_what_is_given_up_on_a_frozen_engine_is_not_worked_at_when_it_goes_on(
    pair: House,
) -> None:
    """Somebody else has answered it: twice the work, for nobody."""
    pair.engines[0].faults.inject("freeze")
    stuck = await stuck_on(pair, 0)
    held = pair.engines[0].engine
    (first, _) = replicas(pair)
    await eventually(lambda: first.vital.progressed_at is not None)
    pair.clock.lead_s += STALL_S
    answers = await asyncio.gather(*stuck)
    assert {answer.status_code for answer in answers} == {200}
    assert all("[DONE]" in answer.text for answer in answers)
    pair.engines[0].faults.clear()
    await eventually(lambda: not held.running and not held.waiting)
    await eventually(lambda: first.circuit.state(pair.clock()).value != "open")


async def test_a_replica_that_comes_and_goes_must_rest(pair: House) -> None:
    """Each time it comes it is given requests to lose."""
    (first, _) = replicas(pair)
    for _ in range(2):
        pair.taps[0].refuse()
        await eventually(lambda: first.is_lost)
        await pair.taps[0].listen()
        await eventually(lambda: not first.is_lost)
    says = await told(pair, 0)
    assert (says["up"], says["breaker"], says["breaker_reason"]) == (True, "open", "flapping")


async def test_one_request_is_tried_on_three_engines_and_on_none_twice() -> None:
    """Each try is somebody's slot, and one that failed it would fail it again."""
    async with house(FAST, FAST, FAST, FAST) as four:
        for engine in four.engines:
            engine.faults.inject("error-500")
        answer = await four.post(STREAM)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
        assert sorted(len(tap.seen) for tap in four.taps) == [0, 1, 1, 1]
        assert len({each.header["x-request-id"] for each in four.seen}) == 3
        record = await four.settle()
        assert record.attempts == 3
