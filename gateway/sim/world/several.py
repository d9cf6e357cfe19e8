"""Several gateways before one fleet: each decides alone, on what it sees, which is not everything.

Clients reach them in turn. A gateway hears of its own requests at once and of those of the others
only as load in the engines' gauges, where its report is not lost. They do not speak to one another.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from random import Random

from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import (
    Decision,
    Decisions,
    Dispatch,
    Machine,
    Refused,
    Report,
    Truth,
    Wake,
)


class Several:
    """One dispatcher made of several; see `Dispatch`."""

    def __init__(self, gateways: Sequence[Dispatch], *, loss: float = 0.0, seed: int = 0) -> None:
        """`loss`: share of the reports that each gateway misses, besides those that all miss."""
        if not gateways:
            raise ValueError("there must be a gateway")
        self.gateways = gateways
        self.hears_progress = any(gateway.hears_progress for gateway in gateways)
        self._loss = loss
        self._dice = [Random(f"{seed}/gateway/{index}") for index in range(len(gateways))]
        self._wake_at = [inf] * len(gateways)
        self._of: dict[int, int] = {}
        """By number: the gateway that has the request."""
        self._turn = 0

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`."""
        return self._all(gateway.begin(machines, truth, now) for gateway in self.gateways)

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`; the next gateway has it."""
        index = self._of[job.number] = self._turn
        self._turn = (index + 1) % len(self.gateways)
        return self._one(index, self.gateways[index].arrived(job, now))

    def first_token(self, number: int, now: float) -> Decisions:
        """See `Dispatch.first_token`."""
        index = self._of[number]
        return self._one(index, self.gateways[index].first_token(number, now))

    def progressed(self, replica: int, tokens: Mapping[int, int], now: float) -> Decisions:
        """See `Dispatch.progressed`; each hears of its own."""
        parts: list[dict[int, int]] = [{} for _ in self.gateways]
        for number, count in tokens.items():
            parts[self._of[number]][number] = count
        out: list[Decision] = []
        for index, part in enumerate(parts):
            if part and self.gateways[index].hears_progress:
                out += self._one(index, self.gateways[index].progressed(replica, part, now))
        return out

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        index = self._of.pop(number)
        told = self.gateways[index].ended(number, now, output_tokens=output_tokens)
        return self._one(index, told)

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        index = self._of.pop(number)
        told = self.gateways[index].left(number, now, output_tokens=output_tokens)
        return self._one(index, told)

    def broke(
        self,
        number: int,
        now: float,
        *,
        replica: int,
        output_tokens: int,
        was_sent: bool,
        goes_on: bool,
    ) -> Decisions:
        """See `Dispatch.broke`; the others hear nothing of it."""
        index = self._of[number]
        if not goes_on:
            del self._of[number]
        told = self.gateways[index].broke(
            number,
            now,
            replica=replica,
            output_tokens=output_tokens,
            was_sent=was_sent,
            goes_on=goes_on,
        )
        return self._one(index, told)

    def taken_back(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.taken_back`."""
        index = self._of[number]
        told = self.gateways[index].taken_back(number, now, output_tokens=output_tokens)
        return self._one(index, told)

    def too_late(self, number: int, now: float) -> Decisions:
        """See `Dispatch.too_late`."""
        index = self._of[number]
        return self._one(index, self.gateways[index].too_late(number, now))

    def moved(self, number: int, now: float, *, replica: int, is_done: bool) -> Decisions:
        """See `Dispatch.moved`; nobody hears of one that is over."""
        index = self._of.get(number)
        if index is None:
            return ()
        told = self.gateways[index].moved(number, now, replica=replica, is_done=is_done)
        return self._one(index, told)

    def reported(self, replica: int, report: Report, now: float) -> Decisions:
        """See `Dispatch.reported`; each may miss it."""
        out: list[Decision] = []
        for index, gateway in enumerate(self.gateways):
            if not self._loss or self._dice[index].random() >= self._loss:
                out += self._one(index, gateway.reported(replica, report, now))
        return out

    def lost(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.lost`."""
        return self._all(gateway.lost(replica, now) for gateway in self.gateways)

    def back(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.back`."""
        return self._all(gateway.back(replica, now) for gateway in self.gateways)

    def drained(self, replica: int, now: float, *, is_draining: bool) -> Decisions:
        """See `Dispatch.drained`."""
        return self._all(
            gateway.drained(replica, now, is_draining=is_draining) for gateway in self.gateways
        )

    def tick(self, now: float) -> Decisions:
        """See `Dispatch.tick`; of those whose instant has come."""
        out: list[Decision] = []
        for index, gateway in enumerate(self.gateways):
            if self._wake_at[index] <= now:
                self._wake_at[index] = inf
                out += self._one(index, gateway.tick(now))
        if not any(isinstance(decision, Wake) for decision in out):
            out += self._wish()
        return out

    def _all(self, told: Iterable[Decisions]) -> list[Decision]:
        out: list[Decision] = []
        for index, decisions in enumerate(told):
            out += self._one(index, decisions)
        return out

    def _one(self, index: int, decisions: Decisions) -> list[Decision]:
        """The decisions of one gateway; a wish to be woken becomes the earliest of all wishes."""
        out: list[Decision] = []
        for decision in decisions:
            if isinstance(decision, Wake):
                self._wake_at[index] = decision.at
                out += self._wish()
                continue
            if isinstance(decision, Refused):
                self._of.pop(decision.number, None)
            out.append(decision)
        return out

    def _wish(self) -> list[Decision]:
        at = min(self._wake_at)
        return [Wake(at)] if at < inf else []
