"""The live side of a gateway among several: what goes wrong there ends nothing else."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from gateway.cluster.member import Member
from gateway.cluster.messages import Led, Message
from gateway.cluster.ports import BEAT_S, Bid, Leader, Standing
from gateway.cluster.seat import Seat
from gateway.core.messages import Decision, ReplicaFound
from gateway.core.scheduler import Scheduler
from tests.support.redis_parties import until
from tests.support.script import one_tier


class Line:
    """A transport that only listens."""

    def __init__(self) -> None:
        self.heard: Callable[[Sequence[Message]], None] | None = None
        self.is_closed = False

    def post(self, to: str, message: Message) -> None:
        """Dropped."""

    async def run(
        self, heard: Callable[[Sequence[Message]], None], lost: Callable[[], None]
    ) -> None:
        """Until cancelled."""
        self.heard = heard
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to let go of."""
        self.is_closed = True


class Rules:
    """A lease that whoever wants it has; notes what it is asked."""

    def __init__(self) -> None:
        self.bids: list[Bid] = []
        self.asked = asyncio.Event()
        self.slow_s = 0.0

    async def beat(self, bid: Bid) -> Standing:
        """Answer at once, or when told to."""
        self.bids.append(bid)
        self.asked.set()
        if self.slow_s and not bid.goes:
            await asyncio.sleep(self.slow_s)
        leaders = {pool: Leader("g", 1) for pool in bid.wants}
        return Standing(gateways={"g": ""}, leaders=leaders)


class Odd(Member):
    """One whose heartbeats, or whose ears, fail as often as is said."""

    beats_fail = 0
    ears_fail = 0

    def beat(self, now: float) -> list[Decision]:
        """Fail, or go on."""
        if self.beats_fail:
            self.beats_fail -= 1
            raise LookupError("a tier that is no more")
        return super().beat(now)

    def heard(self, messages: Sequence[Message], now: float) -> list[Decision]:
        """Fail, or go on."""
        if self.ears_fail:
            self.ears_fail -= 1
            raise LookupError("a tier that is no more")
        return super().heard(messages, now)


class Set:
    """A seat with all that it needs, and a clock that runs ahead of the loop's."""

    def __init__(self) -> None:
        self.line, self.rules = Line(), Rules()
        self.member = Odd("g", Scheduler(one_tier()), self.line.post)
        self.now = 100.0
        self.seat = Seat(
            self.member,
            transport=self.line,
            lease=self.rules,
            clock=self._clock,
            carry_out=lambda decisions: None,
        )
        found = ReplicaFound(replica="r", models=frozenset({"m"}), slots=1)
        self.member.handle(found, self.now)

    def _clock(self) -> float:
        self.now += BEAT_S
        return self.now


@pytest.mark.parametrize("what", ["beats_fail", "ears_fail"])
async def test_whatever_fails_between_gateways_each_serves_alone(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A process with thousands of streams would end with one odd message."""
    made = Set()
    running = asyncio.create_task(made.seat.run())
    await until(lambda: len(made.rules.bids) >= 2)
    setattr(made.member, what, 1)
    if what == "ears_fail":
        assert made.line.heard is not None
        made.line.heard([Led("h", "m", 1, 0, 0)])
    await until(lambda: made.seat.losses)
    await until(lambda: not made.seat.is_degraded)
    assert "LookupError" in caplog.text
    assert "degraded: this gateway decides alone" in caplog.text
    assert "degraded no more" in caplog.text
    assert not made.member.is_apart
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_no_heartbeat_comes_after_the_farewell() -> None:
    """The others would wait for the lease of a gateway that is gone."""
    made = Set()
    running = asyncio.create_task(made.seat.run())
    await made.rules.asked.wait()
    made.rules.slow_s = 0.001
    made.rules.asked.clear()
    await made.rules.asked.wait()
    await made.seat.close()
    for _ in range(50):
        await asyncio.sleep(0.0001)
    assert made.rules.bids[-1].goes
    assert made.line.is_closed
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
