"""A scheduler test as a conversation: who comes, what ends, who must have been let go.

After every event the books are checked, and `Woke` is delivered when a live gateway would.
"""

from collections.abc import Iterable, Mapping
from typing import Self

from gateway.core import invariants
from gateway.core.messages import (
    Adopted,
    Arrived,
    Bounced,
    Cancelled,
    Closed,
    Decision,
    DrainAsked,
    Event,
    Fault,
    Finished,
    FirstToken,
    Granted,
    MoveWanted,
    Outcome,
    PolicyChanged,
    Progressed,
    Reason,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    ReplicaFound,
    ReplicaLost,
    ReplicaRefused,
    ReplicaRemoved,
    ReplicaReported,
    Request,
    ScaleAdvised,
    Usage,
    WakeWanted,
    Woke,
)
from gateway.core.policy import DEFAULT_TIERS, Policy, Tier
from gateway.core.report import ReplicaReport
from gateway.core.scheduler import Scheduler

WAKES_MAX = 10
"""More wake-ups than this at one instant mean a scheduler that spins."""

CHECKED_EACH_TIME = 20
"""With no more than this waiting, the books are checked after every event."""


def one_tier(**changes: object) -> Policy:
    """One tier that releases into free slots only, requests counted: the plainest policy."""
    tier = Tier(name="only", queue_limit=0, patience_s=1e6)
    return Policy(**{"tiers": (tier,), "cost": "requests", **changes})  # type: ignore[arg-type]  # free keywords


def four_tiers(**changes: object) -> Policy:
    """The product's own tiers."""
    return Policy(**{"tiers": DEFAULT_TIERS, **changes})  # type: ignore[arg-type]  # free keywords


class Script:
    """A scheduler, its clock, and what was said so far."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.scheduler = Scheduler(policy or one_tier())
        self.now = 0.0
        self.log: list[tuple[float, Event, list[Decision]]] = []
        self.order: list[str] = []
        """Ids in the order in which they were let go."""
        self.running: dict[str, str] = {}
        """Id -> replica, in the order in which they were let go."""
        self.waiting: set[str] = set()
        self.refused: dict[str, Refused] = {}
        self.recalled: dict[str, str] = {}
        """Id -> replica of recalls that were not answered yet."""
        self.recall_log: list[tuple[float, str, str]] = []
        self.move_log: list[tuple[float, str, str]] = []
        """(instant, id, replica) of all recalls so far."""
        self.advice: list[ScaleAdvised] = []
        self.kept_out: dict[str, set[str]] = {}
        """Replica -> why nothing may go there."""
        self.ended: set[str] = set()
        self._requests: dict[str, Request] = {}
        self._started: set[str] = set()
        self._truth: dict[str, Usage] = {}
        self._wake_at: float | None = None

    # What happens.

    def tell(self, event: Event) -> Self:
        """Any event, now."""
        decisions = self.scheduler.handle(event, self.now)
        self.log.append((self.now, event, decisions))
        for decision in decisions:
            self._heard(decision)
        # Checking costs as much as there is: a long line is checked now and then.
        if len(self.log) % (1 + len(self.waiting) // CHECKED_EACH_TIME) == 0:
            self.check()
        return self

    def check(self) -> None:
        """The books agree with one another and with what was decided."""
        invariants.check(self.scheduler)
        assert set(self.scheduler.waiting) == self.waiting, "waiting is not what was decided"
        assert set(self.scheduler.granted) == set(self.running), "granted is not what was decided"

    def advance(self, seconds: float) -> Self:
        """Time passes; the scheduler is woken whenever it asked for it."""
        until, wakes = self.now + seconds, 0
        while self._wake_at is not None and self._wake_at <= until:
            wakes = wakes + 1 if self._wake_at <= self.now else 0
            assert wakes <= WAKES_MAX, "the scheduler spins"
            self.now, self._wake_at = max(self.now, self._wake_at), None
            self.tell(Woke())
        self.now = until
        return self

    def replica(
        self,
        name: str,
        *,
        slots: int | None = None,
        models: Iterable[str] = ("m",),
        weight: float = 1.0,
        context_tokens: int | None = None,
        orders_by_tier: bool = False,
    ) -> Self:
        """A replica is found, or found to be different."""
        self.kept_out[name] = self.kept_out.get(name, set()) & {"drained"}
        return self.tell(
            ReplicaFound(
                replica=name, models=frozenset(models), slots=slots, weight=weight,
                context_tokens=context_tokens, orders_by_tier=orders_by_tier,
            )
        )  # fmt: skip

    def arrive(self, id: str, *, output_tokens: int = 10, **fields: object) -> Self:
        """A request comes; `output_tokens` is what it will really produce, unknown to anybody."""
        request = self._new(id, output_tokens, fields)
        self.waiting.add(id)
        return self.tell(Arrived(request))

    def take_over(
        self,
        id: str,
        replica: str,
        *,
        is_started: bool = True,
        running_s: float = 1.0,
        output_tokens: int = 10,
        **fields: object,
    ) -> Self:
        """A request that another scheduler granted turns out to run on `replica`."""
        request = self._new(id, output_tokens, fields)
        knows = self.scheduler.pool_of(request.model) is not None
        if knows and replica in self.scheduler.replicas:
            self.running[id] = replica
            if is_started:
                self._started.add(id)
        else:
            self.ended.add(id)
        return self.tell(
            Adopted(request=request, replica=replica, running_s=running_s, is_started=is_started)
        )  # fmt: skip

    def arrive_many(self, prefix: str, count: int, **fields: object) -> Self:
        """`prefix0`, `prefix1` ... arrive at this instant."""
        for number in range(count):
            self.arrive(f"{prefix}{number}", **fields)  # type: ignore[arg-type]  # free keywords
        return self

    def first_token(self, *ids: str) -> Self:
        """The engine began to answer."""
        for id in ids:
            self._started.add(id)
            self.tell(FirstToken(id))
        return self

    def start_all(self) -> Self:
        """All that runs begins to answer, until nothing more is let go."""
        while fresh := [id for id in self.running if id not in self._started]:
            self.first_token(*fresh)
        return self

    def progress(
        self, replica: str, heard_at: float | None = None, /, **output_tokens: int
    ) -> Self:
        """So much was produced until now."""
        return self.tell(Progressed(replica, output_tokens, heard_at))

    def fail(self, id: str, fault: Fault) -> Self:
        """It failed, and that is the engine's fault."""
        return self.finish(id, outcome=Outcome.FAILED, fault=fault)

    def refuse_connections(self, name: str) -> Self:
        """Nobody listens there."""
        return self.tell(ReplicaRefused(name))

    def finish(
        self,
        *ids: str,
        outcome: Outcome = Outcome.DONE,
        usage: Usage | None = None,
        tpot_s: float | None = None,
        fault: Fault | None = None,
        goes_on: bool = False,
    ) -> Self:
        """The upstream ended; without `usage` it reports what the request was said to need."""
        for id in ids:
            self._gone(id)
            self.tell(
                Finished(
                    id, outcome, usage or self._truth[id], tpot_s, fault=fault, goes_on=goes_on
                )
            )
        return self

    def cancel(self, *ids: str) -> Self:
        """The client left before anything was answered."""
        for id in ids:
            self._gone(id)
            self.tell(Cancelled(id))
        return self

    def bounce(self, id: str) -> Self:
        """The engine was busy."""
        self._go_back(id)
        return self.tell(Bounced(id))

    def give_back(self, id: str) -> Self:
        """A recall came in time."""
        self._go_back(id)
        return self.tell(RecallDone(id))

    def keep(self, id: str) -> Self:
        """A recall came too late."""
        self.recalled.pop(id, None)
        return self.tell(RecallTooLate(id))

    def report(self, name: str, *, sent_at: float | None = None, **figures: object) -> Self:
        """A scrape comes back; without `sent_at` it was asked for just now."""
        report = ReplicaReport(**figures)  # type: ignore[arg-type]  # free keywords
        asked_at = self.now if sent_at is None else sent_at
        return self.tell(ReplicaReported(replica=name, sent_at=asked_at, report=report))

    def lose(self, name: str) -> Self:
        """The replica stopped answering."""
        self.kept_out.setdefault(name, set()).add("lost")
        return self.tell(ReplicaLost(name))

    def remove(self, name: str) -> Self:
        """The replica is no longer configured."""
        self.kept_out[name] = {"removed"}
        return self.tell(ReplicaRemoved(name))

    def drain(self, name: str, *, draining: bool = True) -> Self:
        """The operator wants the replica empty, or back."""
        reasons = self.kept_out.setdefault(name, set())
        (reasons.add if draining else reasons.discard)("drained")
        return self.tell(DrainAsked(name, draining))

    def change(self, policy: Policy, moved_to: Mapping[str, str] | None = None) -> Self:
        """The operator changed the policy."""
        return self.tell(PolicyChanged(policy, moved_to or {}))

    def close(self) -> Self:
        """The gateway shuts down."""
        return self.tell(Closed())

    def serve(self, turns: int, *, each_s: float = 1.0) -> Self:
        """Time and again the request that was let go first ends."""
        for _ in range(turns):
            self.advance(each_s)
            if self.running:
                self.finish(next(iter(self.running)))
        return self

    # What must be so.

    def expect_granted(self, *ids: str, on: str | None = None) -> Self:
        """All of them run, on that replica if one is named."""
        for id in ids:
            where = self.running.get(id)
            assert where is not None, f"{id} does not run: {self._state_of(id)}"
            assert on is None or where == on, f"{id} runs on {where}"
        return self

    def expect_waiting(self, *ids: str) -> Self:
        """All of them wait."""
        for id in ids:
            assert id in self.waiting, f"{id} does not wait: {self._state_of(id)}"
        return self

    def expect_refused(self, *ids: str, reason: Reason) -> Self:
        """All of them were refused for that reason."""
        for id in ids:
            assert id in self.refused, f"{id} was not refused: {self._state_of(id)}"
            assert self.refused[id].reason is reason, f"{id}: {self.refused[id].reason}"
        return self

    def expect_order(self, *ids: str) -> Self:
        """Exactly these were let go so far, in this order."""
        assert self.order == list(ids), self.order
        return self

    def count_of(self, prefix: str) -> int:
        """How many ids with that beginning were let go."""
        return sum(id.startswith(prefix) for id in self.order)

    def on(self, replica: str) -> list[str]:
        """Ids that run there, in the order in which they were let go."""
        return [id for id, where in self.running.items() if where == replica]

    def request(self, id: str) -> Request:
        """The request as it arrived last."""
        return self._requests[id]

    def _new(self, id: str, output_tokens: int, fields: dict[str, object]) -> Request:
        given = {
            "model": "m",
            "tier": 0,
            "tenant": "t",
            "user": "u",
            "arrived_at": self.now,
            "prompt_tokens": 10,
            "streams": True,
            **fields,
        }
        request = Request(id=id, **given)  # type: ignore[arg-type]  # free keywords
        assert id not in self.waiting | set(self.running), f"{id} is already here"
        self.ended.discard(id)
        self._requests[id] = request
        self._truth[id] = Usage(
            prompt_tokens=request.prompt_tokens or 0, output_tokens=output_tokens
        )
        return request

    def _heard(self, decision: Decision) -> None:
        if isinstance(decision, WakeWanted):
            self._wake_at = decision.at
            return
        if isinstance(decision, ScaleAdvised):
            scaling = self.scheduler.policy.scaling
            assert scaling.min <= decision.replicas <= scaling.max, f"{decision} is out of bounds"
            self.advice.append(decision)
            return
        if isinstance(decision, Recalled):
            self._asked_back(decision)
            return
        if isinstance(decision, MoveWanted):
            self._asked_away(decision)
            return
        id = decision.request_id
        assert id in self.waiting, f"{decision} about a request that does not wait"
        self.waiting.remove(id)
        if isinstance(decision, Granted):
            reasons = self.kept_out.get(decision.replica)
            assert not reasons, f"{id} was put on {decision.replica}, which is {reasons}"
            self.running[id] = decision.replica
            self.order.append(id)
        else:
            self.refused[id] = decision
            self._end(id)

    def _asked_back(self, decision: Recalled) -> None:
        id = decision.request_id
        assert self.running.get(id) == decision.replica, f"{id} is recalled from elsewhere"
        has_reader = self._requests[id].streams
        assert not (id in self._started and has_reader), f"{id} is recalled after its first token"
        self.recalled[id] = decision.replica
        self.recall_log.append((self.now, id, decision.replica))

    def _asked_away(self, decision: MoveWanted) -> None:
        id = decision.request_id
        assert self.running.get(id) == decision.replica, f"{id} is to move from elsewhere"
        assert id in self._started, f"{id} is to move before it began"
        assert self._requests[id].is_continuable, f"{id} cannot go on elsewhere, and is to move"
        self.move_log.append((self.now, id, decision.replica))

    def _go_back(self, id: str) -> None:
        del self.running[id]
        self.recalled.pop(id, None)
        self.waiting.add(id)
        self._started.discard(id)

    def _gone(self, id: str) -> None:
        if id in self.waiting or id in self.running:
            self._end(id)
        self.waiting.discard(id)
        self.running.pop(id, None)
        self.recalled.pop(id, None)
        self._started.discard(id)

    def _end(self, id: str) -> None:
        assert id not in self.ended, f"{id} ended twice"
        self.ended.add(id)

    def _state_of(self, id: str) -> str:
        if id in self.waiting:
            return "it waits"
        if id in self.running:
            return "it runs"
        return f"it was refused: {self.refused[id].reason}" if id in self.refused else "it is gone"
