"""What must hold in every run, whatever goes wrong: judged after each event, and at the end.

It keeps books of its own, from what the scheduler was told and said, and compares: who waits and
who runs, what each attempt was charged, how long anybody waited, and which replica stood idle.
"""

from collections import Counter
from dataclasses import fields
from hashlib import blake2b

from gateway.core import cost, invariants
from gateway.core.ledger import Grant
from gateway.core.messages import (
    Arrived,
    Bounced,
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
    Reason,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    ReplicaFound,
    ReplicaLost,
    ReplicaRemoved,
    ReplicaReported,
    Request,
    Usage,
)
from gateway.core.policy import Policy
from gateway.core.replica import Replica
from gateway.core.scheduler import RECHECK_S
from gateway.sim.asks import Client, End
from gateway.sim.life import Stage
from gateway.sim.site import Site

LATE_S = 0.01
"""A wait may end so much after the instant at which it must."""
IDLE_S = RECHECK_S + LATE_S
"""A replica that holds nothing may stand idle so long while something waits for it."""
ROUNDING = 1e-6


class Judge:
    """The witness of one run. Every complaint is an AssertionError."""

    def __init__(self) -> None:
        self.trace = blake2b(digest_size=12)
        self.grants = 0
        self.charged: Counter[str] = Counter()
        """Attempts that were charged anything, by the request of the client."""
        self._site: Site | None = None
        self._waiting: dict[str, Request] = {}
        self._running: dict[str, str] = {}
        """Attempts that were granted and have not ended, each with its replica."""
        self._recalled: set[str] = set()
        self._started: set[str] = set()
        self._due: dict[str, float] = {}
        """When the patience of each attempt ends, by the policy under which it arrived."""
        self._deadlines: dict[str, float] = {}
        """The same for those that wait, put off to the instant at which they came back."""
        self._idle_since: dict[str, float] = {}
        self._failed: dict[str, dict[str, tuple[float, Fault | None]]] = {}
        """When it failed and why, by request of a client, then replica."""
        self._away: set[str] = set()
        self._drained: set[str] = set()
        self._is_closed = False
        self._ending: Grant | None = None

    def watch(self, site: Site) -> None:
        """The run that it is the witness of."""
        self._site = site

    @property
    def _here(self) -> Site:
        assert self._site is not None, "watch comes first"
        return self._site

    # --- after each event -----------------------------------------------------------------------

    def tells(self, event: Event) -> None:
        """See `desk.Witness`."""
        if isinstance(event, Finished | Bounced | RecallDone):
            found = self._here.desk.scheduler.granted.get(event.request_id)
            self._ending = None if found is None else found[0]

    def told(self, event: Event, decisions: list[Decision]) -> None:
        """See `desk.Witness`."""
        now = self._here.clock.now
        self.trace.update(_line(now, event).encode())
        self._take_in(event, now)
        for decision in decisions:
            self.trace.update(_line(now, decision).encode())
            self._take_decision(decision, now)
        if self._here.is_over:
            return  # nothing can be lost any more; `conclude` looks once again
        scheduler = self._here.desk.scheduler
        invariants.check(scheduler)
        _same(scheduler.waiting.keys(), self._waiting.keys(), "who waits")
        _same(scheduler.granted.keys(), self._running.keys(), "who runs")
        for id, deadline in self._deadlines.items():
            assert now <= deadline + LATE_S, f"{id} waits beyond its patience"
        for name, replica in scheduler.replicas.items():
            is_away = name in self._away or name in self._drained
            _same(replica.is_usable, not is_away, f"whether {name} may be used")
        self._look_at_lives(decisions)
        self._look_for_idle(now)

    def _look_at_lives(self, decisions: list[Decision]) -> None:
        """Who asked and the scheduler agree on where a request is."""
        site = self._here
        decided = {each.request_id for each in decisions if isinstance(each, Granted | Refused)}
        for id in self._waiting:
            assert id in site.desk.waiters, f"{id} waits and nobody waits for it"
        for id in self._running:
            life = site.lives[_ask_of(id)]
            is_held = id in site.desk.waiters and life.stage is not Stage.WAITING
            assert is_held or id in decided, f"{id} holds a slot and is {life.stage}"
        for server in site.servers.values():
            for link in server.links:
                life = site.lives[link.ask.id]
                exchange = None if life.stage is Stage.OVER else life.exchange
                is_wanted = exchange is not None and exchange.link is link
                assert link.is_left or is_wanted, f"{server.spec.name} works on {link.id} in vain"

    def _take_in(self, event: Event, now: float) -> None:
        match event:
            case Arrived(request):
                assert request.id not in self._running, f"{request.id} arrives and runs"
                life = self._here.lives[_ask_of(request.id)]
                since = life.broke_at if request.is_continuation else life.ask.at
                assert request.arrived_at == since, f"{request.id} lost its place"
                self._forgive(request)
                self._due[request.id] = _due(request, self._here.desk.policy)
                self._wait(request, now)
            case FirstToken(id):
                assert id in self._running, f"{id} begins and was not granted"
                self._started.add(id)
            case Finished(id):
                assert id in self._running or id in self._waiting, f"{id} ends twice"
                if event.outcome is Outcome.FAILED and id in self._running:
                    failed = self._failed.setdefault(_ask_of(id), {})
                    failed[self._running[id]] = now, event.fault
                self._leave(id)
                self._judge_charge(event)
            case Bounced(id) | RecallDone(id):
                assert id in self._running, f"{id} comes back and was not granted"
                assert id not in self._started, f"{id} comes back after it began"
                assert isinstance(event, Bounced) or id in self._recalled, f"{id}: not recalled"
                self._leave(id)
                assert self._ending is not None, f"{id} comes back and holds nothing"
                assert self._ending.charged == 0.0, f"{id} is charged for coming back"
                self._wait(self._ending.waiting.request, now)
            case RecallTooLate(id):
                self._recalled.discard(id)
            case _:
                self._take_in_fleet(event)

    def _take_in_fleet(self, event: Event) -> None:
        """Which replicas nothing may be put on."""
        match event:
            case ReplicaFound():
                self._away.discard(event.replica)
            case ReplicaLost(replica):
                self._away.add(replica)
            case ReplicaRemoved(replica):
                # Whoever configures it again begins anew.
                self._away.add(replica)
                self._drained.discard(replica)
            case DrainAsked(replica, draining):
                (self._drained.add if draining else self._drained.discard)(replica)
            case Closed():
                self._is_closed = True
            case _:
                pass

    def _take_decision(self, decision: Decision, now: float) -> None:
        match decision:
            case Granted(id, replica):
                assert id in self._waiting, f"{id} is granted and does not wait"
                request = self._waiting.pop(id)
                assert replica not in request.excluded, f"{id} goes where it is excluded"
                failed = self._failed.get(_ask_of(id), {}).get(replica)
                is_forgiven = failed is None or self._is_forgiven(request, replica, *failed)
                assert is_forgiven, f"{id} goes where it failed"
                is_away = replica in self._away or replica in self._drained
                assert not is_away, f"{id} goes to {replica}, which is away"
                assert not self._is_closed, f"{id} is granted after the end"
                del self._deadlines[id]
                self._running[id] = replica
                self.grants += 1
            case Refused(id, reason):
                assert id in self._waiting, f"{id} is refused and does not wait"
                is_early = reason is Reason.PATIENCE_SPENT and now < self._due[id] - LATE_S
                assert not is_early, f"{id} has patience until {self._due[id]}, and was refused"
                del self._waiting[id], self._deadlines[id]
            case Recalled(id, replica):
                assert self._running.get(id) == replica, f"{id} is recalled from elsewhere"
                assert id not in self._recalled, f"{id} is recalled again"
                assert id not in self._started, f"{id} is recalled and has begun"
                self._recalled.add(id)
            case MoveWanted(id, replica):
                assert self._running.get(id) == replica, f"{id} is to be moved from elsewhere"
                assert id in self._started, f"{id} is to be moved and has not begun"
            case _:
                pass

    def _forgive(self, request: Request) -> None:
        """What had come back when it asked may have gone again by the time it is granted."""
        failed = self._failed.get(_ask_of(request.id), {})
        for replica, (at, fault) in list(failed.items()):
            if replica not in request.excluded and self._is_forgiven(request, replica, at, fault):
                del failed[replica]

    def _is_forgiven(
        self, request: Request, replica: str, failed_at: float, fault: Fault | None
    ) -> bool:
        """Whether one that failed a request may be tried again.

        For the rest of a stream, where a probe had an answer since; for what has not begun, where
        it was away meanwhile.
        """
        desk = self._here.desk
        if request.is_continuation or fault is Fault.REFUSED:
            return desk.has_answered_since(replica, failed_at)
        return desk.has_returned_since(replica, failed_at) is True

    def _wait(self, request: Request, now: float) -> None:
        assert request.id not in self._waiting, f"{request.id} waits twice"
        self._waiting[request.id] = request
        # One that comes back late is looked at once more, and then refused.
        self._deadlines[request.id] = max(self._due[request.id], now)

    def _leave(self, id: str) -> None:
        self._running.pop(id, None)
        self._waiting.pop(id, None)
        self._deadlines.pop(id, None)
        self._recalled.discard(id)
        self._started.discard(id)

    def _judge_charge(self, event: Finished) -> None:
        """Nothing for what failed, and never more than for all that was done."""
        grant, self._ending = self._ending, None
        if grant is None:
            return
        id, policy = event.request_id, self._here.desk.policy
        if event.outcome in cost.FREE and not event.goes_on:
            assert grant.charged == 0.0, f"{id} failed and is charged {grant.charged}"
            return
        request = grant.waiting.request
        usage = event.usage or Usage(
            prompt_tokens=grant.waiting.prompt_tokens,
            output_tokens=grant.waiting.output_tokens * request.sequences,
        )
        most = cost.settled(policy, request, Outcome.DONE, usage=usage)
        assert grant.charged <= most + ROUNDING, f"{id} is charged {grant.charged} of {most}"
        self.charged[_ask_of(id)] += event.outcome is Outcome.DONE

    def _look_for_idle(self, now: float) -> None:
        """Work conservation: what holds nothing takes what waits for it, or is not usable."""
        waiting = self._here.desk.scheduler.waiting
        if not waiting:
            self._idle_since.clear()
            return
        wanted = frozenset().union(*(each.kind.replicas for each in waiting.values()))
        for name, replica in self._here.desk.scheduler.replicas.items():
            if name not in wanted or not _is_idle(replica, now):
                self._idle_since.pop(name, None)
                continue
            since = self._idle_since.setdefault(name, now)
            assert now <= since + IDLE_S, f"{name} is idle and {sorted(waiting)} wait"

    # --- what reaches the clients ---------------------------------------------------------------

    def heard(self, client: Client) -> None:
        """A client got its end, or went."""
        ask, end = client.ask, client.end
        self.trace.update(f"{client.ended_at!r} {ask.id} {end} {client.received}\n".encode())
        if end is End.DONE:
            assert client.is_whole, f"{ask.id} is done with {client.received}"
        elif end is End.REFUSED:
            assert not client.tokens, f"{ask.id} got a status after {client.received}"
        elif end is End.ERROR_EVENT:
            assert ask.streams, f"{ask.id} got an event on a plain answer"
            has_read = client.tokens or client.ended_at > ask.stalls_at
            assert has_read, f"{ask.id} got an event before anything"
        elif end is End.LEFT:
            assert client.ended_at >= ask.leaves_at, f"{ask.id} left too soon"
        elif end is End.CUT_OFF:
            assert client.ended_at > ask.stalls_at, f"{ask.id} was cut off while it read"

    # --- at the end -----------------------------------------------------------------------------

    def conclude(self) -> None:
        """Everybody got one end, and nothing is left anywhere."""
        site = self._here
        invariants.check(site.desk.scheduler)
        scheduler, asks = site.desk.scheduler, site.schedule.asks
        missing = [ask.id for ask in asks if ask.id not in site.lives]
        assert not missing, f"{missing} never came"
        for id, life in site.lives.items():
            assert life.client.end is not None, f"{id} has no end: {life.stage}"
            assert life.is_over, f"{id} ended as {life.client.end} and is {life.stage}"
            assert self.charged[id] <= 1, f"{id} was charged {self.charged[id]} times"
        assert not site.desk.waiters, f"{sorted(site.desk.waiters)} are still waited for"
        assert not self._waiting, f"{sorted(self._waiting)} wait for ever"
        assert not self._running, f"{sorted(self._running)} run for ever"
        for name, replica in scheduler.replicas.items():
            ledger = replica.ledger
            assert not ledger.grants, f"{name} holds {sorted(ledger.grants)}"
            assert not ledger.unstarted, f"{name} expects {sorted(ledger.unstarted)}"
            sums = (ledger.sequences, ledger.in_flight, ledger.kv_tokens)
            unstarted = (ledger.unstarted_sequences, ledger.unstarted_prompt_tokens)
            assert not any((*sums, *unstarted)), f"{name} holds {sums}, expects {unstarted}"
        for server in site.servers.values():
            assert not server.at_work, f"{server.spec.name} works for nobody"
            assert not list(server.links), f"{server.spec.name} answers nobody"
            server.engine.check_invariants()


def _due(request: Request, policy: Policy) -> float:
    """When its wait must be over."""
    if request.is_continuation:
        return request.arrived_at + policy.continuation_wait_s
    patience_s = policy.tiers[request.tier].patience_s
    if request.patience_s is not None:
        patience_s = min(patience_s, request.patience_s)
    return request.arrived_at + patience_s


def _is_idle(replica: Replica, now: float) -> bool:
    return (
        replica.is_usable
        and not replica.occupied
        and not replica.ledger.grants
        and now >= replica.busy_until
        and replica.circuit.lets(now)
        and replica.reserved_for is None
    )


def _ask_of(attempt_id: str) -> str:
    """The client's request that an attempt is for."""
    return attempt_id.rpartition("-")[0]


def _same(found: object, derived: object, what: str) -> None:
    assert found == derived, f"{what}: the scheduler says {found!r}, it is {derived!r}"


def _line(now: float, what: Event | Decision) -> str:
    """One line of the trace."""
    kind = type(what).__name__
    if isinstance(what, Arrived):
        request = what.request
        return f"{now!r} {kind} {request.id} {request.tier} {request.prompt_tokens}\n"
    if isinstance(what, ReplicaReported):
        return f"{now!r} {kind} {what.replica} {what.report.running} {what.report.waiting}\n"
    if isinstance(what, PolicyChanged):
        return f"{now!r} {kind} {[tier.name for tier in what.policy.tiers]}\n"
    values = [getattr(what, each.name) for each in fields(what)]
    # The order of a set differs from process to process.
    told = [str(sorted(each) if isinstance(each, frozenset) else each) for each in values]
    return f"{now!r} {kind} {' '.join(told)}\n"
