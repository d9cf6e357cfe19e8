"""One request's life in the gateway: the rules of `api/relay.py` and `runtime/admission.py`.

Attempts, exclusion of what failed, the wait for the scheduler, giving back, going on elsewhere, and
one end. It differs from the real ones in that nothing is awaited: it says what comes next, and the
clock brings it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import ClassVar

from gateway.core.messages import (
    Arrived,
    Bounced,
    Fault,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    Reason,
    RecallDone,
    Refused,
    Request,
    Usage,
)
from gateway.sim.asks import Ask, Client, End
from gateway.sim.desk import Desk
from gateway.sim.exchange import Exchange, Meaning, Reading

TURN_S = 0.0002
"""A turn of the gateway's loop: what was decided is carried out in the next one."""


ASK_AGAIN_S = 0.25
"""Between two looks for a replica that could go on with a broken stream, while there is none."""


class Stage(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    """With the scheduler."""
    GRANTED = "granted"
    """It may go, and has not gone yet."""
    SENT = "sent"
    """On its way or inside the engine, and nothing has come back that counts."""
    TAKEN_BACK = "taken_back"
    """A recall was accepted, and the scheduler has not heard that it is done."""
    LOOKING = "looking"
    """It is the rest of a stream that no replica could take; the scheduler is asked again soon."""
    MOVING = "moving"
    """It leaves a replica that did nothing wrong, and has not left it yet."""
    PASSING = "passing"
    """The client gets what the engine makes."""
    OVER = "over"


@dataclass(slots=True)
class Counts:
    """What befell one request."""

    attempts: int = 0
    retries: int = 0
    bounces: int = 0
    recalls: int = 0
    recalls_late: int = 0
    continuations: int = 0
    moves: int = 0
    stalls: int = 0


class Life:
    """One request, from its arrival to its end."""

    exchange_type: ClassVar[type[Exchange]] = Exchange

    def __init__(
        self, ask: Ask, client: Client, desk: Desk, *, tier: int, continues: frozenset[str]
    ) -> None:
        """`tier` is its rank now; `continues`: names of the tiers whose streams go on elsewhere."""
        self.ask = ask
        self.client = client
        self.tier = tier
        self.stage = Stage.WAITING
        self.counts = Counts()
        self.failed: dict[str, float] = {}
        """Replicas that failed this very request, and when."""
        self.faults: dict[str, Fault | None] = {}
        """What was wrong with them then."""
        self.left: frozenset[str] = frozenset()
        """Replicas that it was moved off; they did nothing wrong, and are better than none."""
        self.exchange: Exchange | None = None
        self.attempt_id = ""
        self.held: list[tuple[int, int]] = []
        """Tokens that the client has not taken: it reads nothing at present."""
        self.held_since: float | None = None
        self.held_until = 0.0
        """When the client last took what it had not taken."""
        self.broke_at = 0.0
        """When its stream last broke off, or it first failed: it is looked for from then on."""
        self._desk = desk
        self._continues = continues
        self._last_error = ""
        self._held_end: tuple[End, str] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the client got its end and no engine works for it any more."""
        return self.stage is Stage.OVER and self.client.end is not None

    @property
    def has_begun(self) -> bool:
        """Whether any of the answer is here; from then on nothing may be told twice."""
        return self.produced > 0

    @property
    def produced(self) -> int:
        """Tokens that are here, whether or not the client has taken them."""
        return self.client.tokens + len(self.held)

    @property
    def silent_since(self) -> float | None:
        """When the engine last said something; None while the client holds it up."""
        if self.exchange is None or self.held_since is not None:
            return None
        since = self.exchange.silent_since
        return None if since is None else max(since, self.held_until)

    def arrive(self) -> None:
        """The request is read; it asks the scheduler."""
        self._attempt()

    def move(self, tier_of: Mapping[int, int]) -> None:
        """The tiers changed: old ranks to new ones."""
        self.tier = tier_of[self.tier]

    def _attempt(self) -> None:
        """Ask the scheduler, once more under a new id: engines have broken on ids seen twice."""
        self.counts.attempts += 1
        self.attempt_id = f"{self.ask.id}-{self.counts.attempts}"
        self.stage, self.exchange = Stage.WAITING, None
        self._desk.waiters[self.attempt_id] = self
        self._desk.tell(Arrived(self._request()))

    def _request(self) -> Request:
        """The scheduler's view of this attempt: of one that has begun, its rest."""
        ask, produced = self.ask, self.produced
        output_tokens_max = ask.output_tokens_max
        if output_tokens_max is not None:
            output_tokens_max -= produced
        return Request(
            id=self.attempt_id,
            model=ask.model,
            tier=self.tier,
            tenant=ask.tenant,
            user=ask.user,
            arrived_at=self.broke_at if self.has_begun else ask.at,
            prompt_tokens=ask.prompt_tokens + produced,
            output_tokens_max=output_tokens_max,
            sequences=ask.sequences,
            streams=ask.streams,
            patience_s=ask.patience_s,
            excluded=self.left.union(self.failed),
            prefix=ask.prefix,
            session=ask.session,
            is_continuation=self.has_begun,
            is_continuable=self._is_exact,
        )

    # --- what the scheduler decides -------------------------------------------------------------

    def decided(self, decision: Granted | Refused) -> None:
        """It may go, or it never will."""
        if isinstance(decision, Refused):
            self._refused(decision)
            return
        self.stage = Stage.GRANTED
        exchange = self.exchange = self.exchange_type(
            self._desk, self.ask, decision.replica, start=self.produced, read=self._read
        )
        self._desk.clock.after(TURN_S, partial(self._go, exchange))

    def recalled(self) -> bool:
        """The scheduler wants it back; False: too late."""
        exchange = self.exchange
        if exchange is None or self.stage not in (Stage.GRANTED, Stage.SENT):
            return False
        self.stage = Stage.TAKEN_BACK
        self._desk.clock.after(TURN_S, partial(self._give_back, exchange))
        return True

    def move_wanted(self) -> bool:
        """The scheduler wants its rest elsewhere; False: it stays."""
        exchange = self.exchange
        is_held = self.held_since is not None
        if exchange is None or self.stage is not Stage.PASSING or is_held or not self._is_exact:
            return False
        self.stage = Stage.MOVING
        self._desk.clock.after(TURN_S, partial(self._move, exchange))
        return True

    def _move(self, exchange: Exchange) -> None:
        if exchange is self.exchange and self.stage is Stage.MOVING:
            self._upstream_ended(exchange, Outcome.CANCELLED)
            self.left |= {exchange.replica}
            self.counts.moves += 1
            self.broke_at = self._desk.clock.now
            self._attempt()

    def _go(self, exchange: Exchange) -> None:
        if exchange is self.exchange and self.stage is Stage.GRANTED:
            self.stage = Stage.SENT
            exchange.send(self.attempt_id)

    def _give_back(self, exchange: Exchange) -> None:
        if exchange is not self.exchange or self.stage is not Stage.TAKEN_BACK:
            return
        self.counts.recalls += 1
        exchange.hang_up()
        self._wait_again()
        self._desk.tell(RecallDone(self.attempt_id))

    def _refused(self, refused: Refused) -> None:
        self._desk.waiters.pop(self.attempt_id, None)
        is_away = refused.reason is Reason.NO_REPLICA
        if is_away and not self.has_begun and self._takes_one_that_returned():
            self.stage = Stage.LOOKING
            self.counts.attempts -= 1
            self._desk.clock.after(TURN_S, self._look_again)
        elif is_away and self._may_look:
            if self.has_begun:
                self._forgive()
            self.stage = Stage.LOOKING
            self.counts.attempts -= 1
            self._desk.clock.after(ASK_AGAIN_S, self._look_again)
        else:
            self.end_with_error(self._last_error or refused.reason.value)

    def _takes_one_that_returned(self) -> bool:
        """Who went away with what has not begun, and has come back, is as good as another one."""
        returned = self._desk.has_returned_since
        for name, at in self.failed.items():
            is_back = returned(name, at)
            if is_back or (is_back is False and self.faults[name] is Fault.REFUSED):
                del self.failed[name]
                return True
        return False

    def _forgive(self) -> None:
        """Who answers again may have been started anew: it is tried before the stream is lost."""
        answered = self._desk.has_answered_since
        self.left = frozenset()
        self.failed = {name: at for name, at in self.failed.items() if not answered(name, at)}

    @property
    def _may_look(self) -> bool:
        until = self.broke_at + self._desk.policy.continuation_wait_s
        if self.has_begun:
            return self._desk.clock.now < until
        if self.ask.patience_s is not None:
            until = min(until, self.ask.at + self.ask.patience_s)
        returned = self._desk.has_returned_since
        may_return = any(
            returned(name, at) is None or self.faults[name] is Fault.DRAINING
            for name, at in self.failed.items()
        )
        return may_return and self._desk.clock.now < until

    def _look_again(self) -> None:
        if self.stage is Stage.LOOKING:
            self._attempt()

    def _wait_again(self) -> None:
        # Before the scheduler hears of it: the next grant may come at once.
        self.stage, self.exchange = Stage.WAITING, None

    # --- what becomes of an exchange ------------------------------------------------------------

    def _read(self, reading: Reading) -> None:
        """An engine said something, unless it was recalled: nothing counts then."""
        exchange = self.exchange
        if exchange is None or self.stage not in (Stage.SENT, Stage.PASSING):
            return
        match reading.meaning:
            case Meaning.OUTPUT:
                if self.stage is Stage.SENT:
                    self.stage = Stage.PASSING
                    self._desk.tell(FirstToken(self.attempt_id))
                self.deliver(reading.tokens)
            case Meaning.WHOLE:
                self.deliver(reading.tokens)
                self._upstream_ended(exchange, Outcome.DONE)
                self.end(End.DONE)
            case Meaning.END:
                self._upstream_ended(exchange, Outcome.DONE)
                self.end(End.DONE)
            case Meaning.BUSY:
                exchange.hang_up()
                self.bounce()
            case Meaning.WRONG:
                self._upstream_ended(exchange, Outcome.REJECTED)
                if self.has_begun:
                    # The whole request was taken: what is wrong with its rest is not the client's.
                    self.try_elsewhere(exchange.replica, reading.why)
                else:
                    self.end_with_error(reading.why)
            case Meaning.BROKEN:
                self._broke(exchange, reading.why, reading.fault)

    def give_up(self, fault: Fault = Fault.STALLED) -> None:
        """The engine has stalled: end this as a failure of the engine."""
        assert self.exchange is not None
        self.counts.stalls += 1
        self._broke(self.exchange, fault.value, fault)

    def _broke(self, exchange: Exchange, why: str, fault: Fault | None) -> None:
        self._upstream_ended(exchange, Outcome.FAILED, fault)
        if self.has_begun and exchange.tokens:
            self.go_on_elsewhere(exchange.replica, why)
        else:
            self.try_elsewhere(exchange.replica, why, fault)

    def _upstream_ended(
        self, exchange: Exchange, outcome: Outcome, fault: Fault | None = None
    ) -> None:
        """The slot is free, whatever the client has still to read."""
        exchange.hang_up()
        if not exchange.tokens:
            self.finish(outcome, fault=fault)
            return
        tpot_s = exchange.tpot_s if self.ask.streams and self.ask.sequences == 1 else None
        # What was generated is paid for where the rest will be.
        goes_on = outcome is Outcome.FAILED and self._is_exact and self._may_try
        self.finish(outcome, exchange.usage, tpot_s, fault=fault, goes_on=goes_on)

    def finish(
        self,
        outcome: Outcome,
        usage: Usage | None = None,
        tpot_s: float | None = None,
        *,
        fault: Fault | None = None,
        goes_on: bool = False,
    ) -> None:
        """The upstream of this attempt ended; told once."""
        if self._desk.waiters.pop(self.attempt_id, None) is not None:
            ended = Finished(self.attempt_id, outcome, usage, tpot_s, fault=fault, goes_on=goes_on)
            self._desk.tell(ended)

    def bounce(self) -> None:
        """The engine is busy: back to its place."""
        self.counts.bounces += 1
        self._wait_again()
        self._desk.tell(Bounced(self.attempt_id))

    def try_elsewhere(self, replica: str, error: str, fault: Fault | None = None) -> None:
        """Nothing has reached the client: another replica may do better."""
        now = self.failed[replica] = self._desk.clock.now
        self.faults[replica] = fault
        if not self.has_begun:
            self.broke_at = self.broke_at or now
        self._last_error = error
        if not self._may_try:
            self.end_with_error(error)
            return
        self.counts.retries += 1
        self._attempt()

    def go_on_elsewhere(self, replica: str, error: str) -> None:
        """The stream broke off: its rest may come from another replica, else one error event."""
        self.failed[replica] = self.broke_at = self._desk.clock.now
        self._last_error = error
        if not (self._is_exact and self._may_try):
            self.end_with_error(error)
            return
        self.counts.continuations += 1
        self._attempt()

    @property
    def _may_try(self) -> bool:
        """Whether it was tried less often than it may be; moves are no tries."""
        counts = self.counts
        return counts.attempts - counts.moves < self._desk.policy.bounds.attempts

    @property
    def _is_exact(self) -> bool:
        """Whether its rest may come from another replica, and would be the same there."""
        ask, tiers = self.ask, self._desk.policy.tiers
        is_one_stream = ask.streams and ask.is_exact and ask.sequences == 1
        return is_one_stream and tiers[self.tier].name in self._continues

    # --- what reaches the client ----------------------------------------------------------------

    def deliver(self, tokens: tuple[tuple[int, int], ...]) -> None:
        """More of the answer; held back while the client reads nothing."""
        now = self._desk.clock.now
        if self.ask.stalls_at <= now < self.ask.reads_again_at:
            self.held.extend(tokens)
            self.held_since = now if self.held_since is None else self.held_since
            return
        for choice, position in tokens:
            self.client.take(choice, position)

    def end(self, end: End, why: str = "") -> None:
        """The client gets the end, after all that it has not read yet."""
        self.stage = Stage.OVER
        if self.held:
            self._held_end = (end, why)
        elif self.client.end is None:
            self.client.finish(end, self._desk.clock.now, why)

    def end_with_error(self, why: str) -> None:
        """One error, in the form that the state of the answer still allows."""
        end = End.ERROR_EVENT if self.has_begun else End.REFUSED
        self.end(end, why)

    def client_reads_again(self) -> None:
        """What was held back is taken at once."""
        held, self.held, self.held_since = self.held, [], None
        self.held_until = self._desk.clock.now
        if self.client.end is not None:
            return
        for choice, position in held:
            self.client.take(choice, position)
        if self._held_end is not None:
            self.client.finish(self._held_end[0], self._desk.clock.now, self._held_end[1])

    def client_leaves(self) -> None:
        """The client goes away: what was produced is charged, the engine stops."""
        if self.client.end is None:
            self._abandon(End.LEFT)

    def cut_off(self) -> None:
        """The client takes nothing: leave it, and stop the engine."""
        self._abandon(End.CUT_OFF)

    def shut_down(self) -> None:
        """The gateway can wait no longer."""
        if self.client.end is None:
            self._abandon(End.ERROR_EVENT if self.has_begun else End.REFUSED, why="shut down")

    def _abandon(self, end: End, why: str = "") -> None:
        exchange, was = self.exchange, self.stage
        self.stage = Stage.OVER
        # While it looks for a replica the scheduler knows nothing of it.
        if was not in (Stage.OVER, Stage.LOOKING):
            if exchange is None:
                self.finish(Outcome.CANCELLED)
            else:
                self._upstream_ended(exchange, Outcome.CANCELLED)
        self.held.clear()
        self._held_end = None
        self.client.finish(end, self._desk.clock.now, why)
