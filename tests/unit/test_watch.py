"""The walk over open exchanges: progress for the scheduler, an end for idle readers."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from gateway.api.relay import Relay
from gateway.api.watch import cut_stalled, give_up_stalled, give_up_stuck, progress, watch
from gateway.core.messages import Fault, Progressed
from gateway.runtime.stalls import STALL_S, Silent
from tests.support.jumping import run_jumping


@dataclass(eq=False)
class Open:
    """An exchange, as far as the walk looks."""

    request_id: str
    replica: str = "gpu0"
    output_tokens: int = 0
    writing_since: float | None = None
    silent_since: float | None = None
    heard_at: float | None = None
    has_begun: bool = False
    given_up: bool = False
    blamed: Fault | None = None
    looked_at: list[float] = field(default_factory=list)

    def look_at_client(self, now: float) -> None:
        """As `Exchange.look_at_client`."""
        self.looked_at.append(now)

    def cut_off(self, task: "asyncio.Task[None]") -> None:
        """As `Exchange.cut_off`."""
        task.cancel()

    def give_up(self, task: "asyncio.Task[None]", fault: Fault = Fault.STALLED) -> None:
        """As `Exchange.give_up`."""
        self.given_up, self.blamed = True, fault
        task.cancel()


@dataclass
class Carrier:
    """Holds open exchanges, as the relay does."""

    open: dict[Open, "asyncio.Task[None] | None"] = field(default_factory=dict)

    @property
    def relay(self) -> Relay:
        """In the eyes of the walk."""
        return cast(Relay, self)

    def carry(self, exchange: Open) -> "asyncio.Task[None]":
        """A task that carries it for ever."""

        async def forever() -> None:
            await asyncio.sleep(1e9)

        task = asyncio.get_running_loop().create_task(forever())
        self.open[exchange] = task
        return task


def test_progress_is_one_event_a_replica_without_what_has_not_begun() -> None:
    """An event for each stream would cost the scheduler thousands a second."""
    relay = Carrier(
        {
            Open("a", output_tokens=3, heard_at=7.0): None,
            Open("b", output_tokens=5, heard_at=9.0): None,
            Open("b2", output_tokens=2, heard_at=8.0): None,
            Open("c", "gpu1", output_tokens=7): None,
            Open("d", "gpu1"): None,
            Open("e", "gpu2"): None,
        }
    ).relay
    assert progress(relay) == [
        Progressed("gpu0", {"a": 3, "b": 5, "b2": 2}, 9.0),
        Progressed("gpu1", {"c": 7}),
    ]


def test_those_that_their_clients_hold_up_are_told_apart() -> None:
    """Their engine may have done with them: that it counts them no more says nothing."""
    relay = Carrier(
        {
            Open("a", output_tokens=3, heard_at=7.0, writing_since=6.0): None,
            Open("b", output_tokens=5, heard_at=9.0): None,
            Open("c", "gpu1", output_tokens=7, writing_since=6.0): None,
        }
    ).relay
    assert progress(relay) == [
        Progressed("gpu0", {"a": 3, "b": 5}, 9.0, frozenset({"a"})),
        Progressed("gpu1", {"c": 7}, None, frozenset({"c"})),
    ]


def test_only_a_client_that_took_nothing_for_too_long_is_cut_off() -> None:
    """It holds memory for as long as it likes; a slow one that reads on is left alone."""

    async def main() -> None:
        carrier = Carrier()
        stalled = carrier.carry(Open("stalled", writing_since=10.0))
        slow = carrier.carry(Open("slow", writing_since=50.0))
        idle = carrier.carry(Open("idle"))
        carrier.open[Open("nobody", writing_since=1.0)] = None
        cut_stalled(carrier.relay, now=70.0, client_stall_s=30.0)
        await asyncio.sleep(0)
        assert (stalled.cancelled(), slow.done(), idle.done()) == (True, False, False)
        assert all(exchange.looked_at == [70.0] for exchange in carrier.open)
        for task in (slow, idle):
            task.cancel()

    run_jumping(main())


def test_an_engine_is_judged_by_all_that_is_known_of_its_request() -> None:
    """A prompt that is computed, a stream that fell silent, and a slow client are three things."""

    async def main() -> None:
        carrier = Carrier()
        opened = {
            "stalled": Open("stalled", silent_since=3.0, has_begun=True),
            "alive": Open("alive", silent_since=9.0),
            "slow client": Open("slow client", writing_since=1.0),
            "queued": Open("queued"),
        }
        for each in opened.values():
            carrier.carry(each)
        carrier.open[Open("nobody", silent_since=0.0)] = None
        asked: list[tuple[str, float, bool, float]] = []

        def judge(request_id: str, *, silent_since: float, has_begun: bool, now: float) -> bool:
            asked.append((request_id, silent_since, has_begun, now))
            return request_id == "stalled"

        give_up_stalled(carrier.relay, judge, 13.0)
        assert asked == [("stalled", 3.0, True, 13.0), ("alive", 9.0, False, 13.0)]
        assert [name for name, each in opened.items() if each.given_up] == ["stalled"]
        for task in carrier.open.values():
            if task is not None:
                task.cancel()

    run_jumping(main())


def test_what_is_stuck_is_sought_among_all_that_are_silent_and_given_up() -> None:
    """A slow client's stream is none of them, and who speaks need not be looked at."""

    async def main() -> None:
        carrier = Carrier()
        opened = {
            "stuck": Open("stuck", silent_since=3.0, has_begun=True),
            "computed": Open("computed", silent_since=2.0),
            "alive": Open("alive", silent_since=2.5 + STALL_S),
            "slow client": Open("slow client", writing_since=1.0),
        }
        for each in opened.values():
            carrier.carry(each)
        carrier.open[Open("nobody", silent_since=0.0)] = None
        asked: list[list[Silent]] = []

        def judge(silent: Iterable[Silent], now: float) -> list[str]:
            asked.append(list(silent))
            return ["stuck"]

        give_up_stuck(carrier.relay, judge, 3.0 + STALL_S)
        assert asked == [[Silent("stuck", 3.0, True), Silent("computed", 2.0, False)]]
        assert {name: each.blamed for name, each in opened.items()} == {
            "stuck": Fault.STUCK, "computed": None, "alive": None, "slow client": None,
        }  # fmt: skip
        give_up_stuck(carrier.relay, judge, 3.0)
        assert len(asked) == 1, "where nobody is silent nobody is asked"
        for task in carrier.open.values():
            if task is not None:
                task.cancel()

    run_jumping(main())


def test_the_walk_goes_round_once_a_second_until_it_is_cancelled() -> None:
    """One timer, however many streams are open."""

    def is_stalled(request_id: str, *, silent_since: float, has_begun: bool, now: float) -> bool:
        return now - silent_since > 2.0

    lost: list[Iterable[Silent]] = []

    def stuck(silent: Iterable[Silent], now: float) -> list[str]:
        lost.append(silent)
        return []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        carrier = Carrier()
        stalled = carrier.carry(Open("a", output_tokens=1, writing_since=0.0))
        silent = Open("b", silent_since=0.5)
        carrier.carry(silent)
        told: list[tuple[float, Progressed]] = []
        walking = loop.create_task(
            watch(
                carrier.relay,
                tell=lambda event: told.append((loop.time(), event)),
                clock=loop.time,
                client_stall_s=lambda: 2.5,
                is_stalled=is_stalled,
                stuck=stuck,
            )
        )
        await asyncio.sleep(2.5)
        assert [instant for instant, _ in told] == [1.0, 2.0]
        assert not stalled.done()
        assert not silent.given_up
        await asyncio.sleep(1.0)
        assert stalled.cancelled()
        assert silent.given_up
        carrier.carry(Open("c", silent_since=3.1 - STALL_S))
        await asyncio.sleep(1.0)
        assert lost
        walking.cancel()
        await asyncio.wait([walking])
        assert walking.cancelled()

    run_jumping(main())


def test_a_walk_that_is_late_gives_up_nobody() -> None:
    """A gateway that stood still blamed its engines for that, and its clients."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        lead_s = 0.0
        carrier = Carrier()
        slow = carrier.carry(Open("a", output_tokens=1, writing_since=0.0))
        silent = Open("b", silent_since=0.0)
        carrier.carry(silent)

        def is_stalled(
            request_id: str, *, silent_since: float, has_begun: bool, now: float
        ) -> bool:
            return now - silent_since > 10.0

        walking = loop.create_task(
            watch(
                carrier.relay,
                tell=lambda event: None,
                clock=lambda: loop.time() + lead_s,
                client_stall_s=lambda: 10.0,
                is_stalled=is_stalled,
                stuck=lambda silent, now: [],
            )
        )
        await asyncio.sleep(2.5)
        lead_s = 20.0
        await asyncio.sleep(1.0)
        assert not slow.done()
        assert not silent.given_up
        await asyncio.sleep(1.0)
        assert slow.cancelled()
        assert silent.given_up
        walking.cancel()

    run_jumping(main())
