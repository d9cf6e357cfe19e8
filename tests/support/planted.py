"""Gateways and schedulers that are wrong in one way each, so that the judge can be judged."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.core.messages import (
    Bounced,
    Cancelled,
    Closed,
    Decision,
    DrainAsked,
    Event,
    Fault,
    Finished,
    Granted,
    Outcome,
    RecallDone,
    Refused,
    ReplicaReported,
    Request,
    Usage,
    Woke,
)
from gateway.core.scheduler import Scheduler
from gateway.sim.asks import End
from gateway.sim.exchange import Exchange, Meaning, Reading
from gateway.sim.life import Life, Stage


class ForgetsTheSlotOfABusyEngine(Life):
    """It waits again, and the scheduler thinks that it still runs."""

    def bounce(self) -> None:
        self._wait_again()


class ReturnsTheSlotTwice(Life):
    """It tells its end at the break, and again when it has given up."""

    def finish(
        self, outcome: Outcome, usage: Usage | None = None, *rest: Any, **named: Any
    ) -> None:
        super().finish(outcome, usage, *rest, **named)
        self._desk.tell(Finished(self.attempt_id, outcome, usage))


class ChargesForWhatFailed(Life):
    """What the engine broke is told as done."""

    def finish(self, outcome: Outcome, *rest: Any, **named: Any) -> None:
        super().finish(Outcome.DONE if outcome is Outcome.FAILED else outcome, *rest, **named)


class KeepsTheAnswerToARecall(Life):
    """The engine let go of it, and the scheduler never hears of that."""

    def _give_back(self, exchange: Exchange) -> None:
        exchange.hang_up()
        self._wait_again()


class GoesOnAfterARecall(Life):
    """It accepts the recall, and passes on what arrives all the same."""

    def recalled(self) -> bool:
        accepted = super().recalled()
        if accepted:
            self.stage = Stage.SENT
        return accepted


class FromTheStart(Exchange):
    """It asks for the whole answer, whatever the client has already."""

    def __init__(self, *given: Any, start: int, **named: Any) -> None:
        super().__init__(*given, start=0, **named)


class RetriesAfterTheFirstToken(Life):
    """A stream that broke off is begun anew."""

    exchange_type = FromTheStart

    @property
    def _is_exact(self) -> bool:
        return self.ask.streams


class OneTooFew(Exchange):
    """The last token before the break is lost."""

    def __init__(self, *given: Any, start: int, **named: Any) -> None:
        super().__init__(*given, start=start + (start > 0), **named)


class LosesATokenAtTheCut(Life):
    """The rest begins one token too late."""

    exchange_type = OneTooFew


class TakesAnyEndForSuccess(Life):
    """`[DONE]` after an error event counts as done."""

    def _broke(self, exchange: Exchange, why: str, fault: Fault | None) -> None:
        if why == "an error event":
            self._upstream_ended(exchange, Outcome.DONE)
            self.end(End.DONE)
        else:
            super()._broke(exchange, why, fault)


class TellsTheErrorTwice(Life):
    """One from the engine, and one of its own."""

    def end_with_error(self, why: str) -> None:
        super().end_with_error(why)
        self.client.finish(End.ERROR_EVENT, self._desk.clock.now, why)


class SaysNothingAtTheEnd(Life):
    """A stream that broke off simply ends."""

    def end_with_error(self, why: str) -> None:
        if self.has_begun:
            self.stage = Stage.OVER
        else:
            super().end_with_error(why)


class ForgetsWhoLeft(Life):
    """The client is gone, and its request waits on."""

    def _abandon(self, end: End, why: str = "") -> None:
        if self.stage is Stage.WAITING:
            self.stage = Stage.OVER
            self._desk.waiters.pop(self.attempt_id, None)
            self.client.finish(end, self._desk.clock.now, why)
        else:
            super()._abandon(end, why)


class LeavesTheEngineAtWork(Life):
    """It settles what the client left, and the engine works on for nobody."""

    def _upstream_ended(
        self, exchange: Exchange, outcome: Outcome, fault: Fault | None = None
    ) -> None:
        exchange.hang_up = lambda: None  # type: ignore[method-assign]  # that is the plant
        super()._upstream_ended(exchange, outcome, fault)


class AsksTheSameAgain(Life):
    """What failed is forgotten."""

    def try_elsewhere(self, replica: str, error: str, fault: Fault | None = None) -> None:
        super().try_elsewhere("nobody", error, fault)


class LosesItsPlace(Life):
    """A retry arrives as if it were new."""

    def _request(self) -> Request:
        return replace(super()._request(), arrived_at=self._desk.clock.now)


class ForgetsWhereItWas(Life):
    """It moves, and never tells that it has left."""

    def _move(self, exchange: Exchange) -> None:
        if exchange is self.exchange and self.stage is Stage.MOVING:
            exchange.hang_up()
            self.broke_at = self._desk.clock.now
            self._attempt()


class PassesOnATokenTwice(Life):
    """An event is delivered by two ways."""

    def _read(self, reading: Reading) -> None:
        super()._read(reading)
        if reading.meaning is Meaning.OUTPUT and self.stage is Stage.PASSING:
            self.deliver(reading.tokens)


class Wrong(Scheduler, ABC):
    """A scheduler that does not hear some events."""

    @abstractmethod
    def deaf_to(self, event: Event) -> bool:
        """Whether it does not hear this one."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        return [] if self.deaf_to(event) else super().handle(event, now)


class DeafToTime(Wrong):
    def deaf_to(self, event: Event) -> bool:
        return isinstance(event, Woke)


class DeafToDrain(Wrong):
    def deaf_to(self, event: Event) -> bool:
        return isinstance(event, DrainAsked)


class DeafToTheEnd(Wrong):
    def deaf_to(self, event: Event) -> bool:
        return isinstance(event, Closed)


class DeafToThoseWhoLeave(Wrong):
    def deaf_to(self, event: Event) -> bool:
        is_end = isinstance(event, Finished) and event.outcome is Outcome.CANCELLED
        return is_end or isinstance(event, Cancelled)


class DeafToBusy(Wrong):
    def deaf_to(self, event: Event) -> bool:
        return isinstance(event, Bounced)


class KeepsTheLedger(Scheduler):
    """The grant goes, its slot stays."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        found = self.granted.get(event.request_id) if isinstance(event, Finished) else None
        decisions = super().handle(event, now)
        if found is not None and isinstance(event, Finished) and event.outcome is Outcome.FAILED:
            found[1].ledger.sequences += found[0].slots
        return decisions


class SwallowsAGrant(Scheduler):
    """The slot is taken, and nobody is told."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        decisions = super().handle(event, now)
        if isinstance(event, Bounced | RecallDone):
            return [each for each in decisions if not isinstance(each, Granted)]
        return decisions


class RefusesTwice(Scheduler):
    """A refusal is told again."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        decisions = super().handle(event, now)
        return decisions + [each for each in decisions if isinstance(each, Refused)]


class NeverForgives(Scheduler):
    """A circuit that opened stays open."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        for replica in self.replicas.values():
            if replica.circuit.reason is not None:
                replica.circuit.until = now + 1_000.0
                self.touch(replica)
        return super().handle(event, now)


class HoldsBack(Scheduler):
    """It never fills a replica that others report of."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        if isinstance(event, Finished | Woke | ReplicaReported):
            for replica in self.replicas.values():
                replica.busy_until = max(replica.busy_until, now + 1.0)
                self.touch(replica)
            decisions = super().handle(event, now)
            for replica in self.replicas.values():
                replica.busy_until = 0.0
                self.touch(replica)
            return decisions
        return super().handle(event, now)


LIVES: Mapping[type[Life], int] = {
    ForgetsTheSlotOfABusyEngine: 28,
    ReturnsTheSlotTwice: 0,
    ChargesForWhatFailed: 6,
    KeepsTheAnswerToARecall: 1,
    GoesOnAfterARecall: 23,
    RetriesAfterTheFirstToken: 6,
    LosesATokenAtTheCut: 17,
    TakesAnyEndForSuccess: 36,
    TellsTheErrorTwice: 0,
    SaysNothingAtTheEnd: 6,
    ForgetsWhoLeft: 1,
    LeavesTheEngineAtWork: 1,
    AsksTheSameAgain: 2,
    LosesItsPlace: 2,
    ForgetsWhereItWas: 151,
    PassesOnATokenTwice: 0,
}
"""Each with a schedule that has shown it."""
SCHEDULERS: Mapping[type[Scheduler], int] = {
    DeafToTime: 1,
    DeafToDrain: 0,
    DeafToTheEnd: 22,
    DeafToThoseWhoLeave: 1,
    DeafToBusy: 28,
    KeepsTheLedger: 2,
    SwallowsAGrant: 1,
    RefusesTwice: 1,
    NeverForgives: 187,
    HoldsBack: 7,
}
