"""A gateway in front of a fleet, and all that happens to both, under one virtual clock.

It brings together what a `Schedule` says: clients come, read and leave; faults begin and end; once
a second the gateway looks at what is open, as `api/watch.py` does. Nothing is decided here.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from gateway.core.messages import Closed, DrainAsked, PolicyChanged, Progressed, ReplicaRemoved
from gateway.core.messages import Fault as Blame
from gateway.core.policy import Policy
from gateway.core.scheduler import Scheduler
from gateway.runtime.stalls import STALL_S, Silent, is_stalled, stuck
from gateway.sim.asks import Ask, Client
from gateway.sim.clock import Clock
from gateway.sim.desk import Desk, Witness
from gateway.sim.faults import Fault, FaultKind
from gateway.sim.life import Life, Stage
from gateway.sim.prober import Wires
from gateway.sim.server import Server, ServerSpec

WALK_EVERY_S = 1.0
FLAPS_DOWN_SHARE = 0.5
"""Of each turn of one that flaps it is down so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All that will happen, as data: the same schedule is the same run, event for event."""

    policy: Policy
    servers: tuple[ServerSpec, ...]
    asks: tuple[Ask, ...]
    faults: tuple[Fault, ...] = ()
    wires: Wires = field(default_factory=Wires)
    continues: frozenset[str] = frozenset()
    """Names of the tiers whose broken streams go on elsewhere."""

    @property
    def calm_from_s(self) -> float:
        """When the last ask has come and the last fault is over."""
        ends = [fault.at + fault.duration_s for fault in self.faults]
        return (
            max((ask.at for ask in self.asks), default=0.0)
            if not ends
            else max(*ends, *(ask.at for ask in self.asks), 0.0)
        )


class Site:
    """One run. `life_type` and `scheduler_type` may be wrong ones, to see whether it is noticed."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        witness: Witness | None = None,
        heard: Callable[[Client], object] = lambda _: None,
        life_type: type[Life] = Life,
        scheduler_type: type[Scheduler] = Scheduler,
    ) -> None:
        self.schedule = schedule
        self.clock = Clock()
        self.desk = Desk(
            scheduler_type(schedule.policy), self.clock, schedule.wires, witness=witness
        )
        self.servers = {spec.name: Server(spec, self.clock) for spec in schedule.servers}
        self.lives: dict[str, Life] = {}
        self.open: dict[str, Life] = {}
        """Requests that are not over."""
        self.is_closed = False
        self._heard = heard
        self._life_type = life_type
        self._tier_of = {rank: rank for rank, _ in enumerate(schedule.policy.tiers)}
        """From the ranks of the first policy to those of the one in force."""
        for server in self.servers.values():
            self.desk.configure(server)
        for ask in schedule.asks:
            self.clock.at(ask.at, partial(self.arrive, ask))
        for fault in schedule.faults:
            self._plan(fault)
        self.clock.after(WALK_EVERY_S, self._walk)

    @property
    def is_over(self) -> bool:
        """Whether every request has come and ended."""
        return len(self.lives) >= len(self.schedule.asks) and not self.open

    # --- clients --------------------------------------------------------------------------------

    def arrive(self, ask: Ask) -> None:
        """A client comes with a request."""
        client = Client(ask, heard=self._ended)
        life = self._life_type(
            ask,
            client,
            self.desk,
            tier=self._tier_of[ask.tier],
            continues=self.schedule.continues,
        )
        self.lives[ask.id] = self.open[ask.id] = life
        for instant, what in (
            (ask.leaves_at, life.client_leaves),
            (ask.reads_again_at, life.client_reads_again),
        ):
            if instant < float("inf"):
                self.clock.at(max(instant, ask.at), what)
        life.arrive()

    def _ended(self, client: Client) -> None:
        self.open.pop(client.ask.id, None)
        self._heard(client)

    # --- the watch ------------------------------------------------------------------------------

    def _walk(self) -> None:
        self.clock.after(WALK_EVERY_S, self._walk)
        produced: dict[str, dict[str, int]] = defaultdict(dict)
        heard: dict[str, float] = {}
        held: dict[str, set[str]] = defaultdict(set)
        for life in self.open.values():
            exchange = life.exchange
            if exchange is None or exchange.heard_at is None:
                continue
            replica = exchange.replica
            produced[replica][life.attempt_id] = exchange.tokens
            heard[replica] = max(exchange.heard_at, heard.get(replica, 0.0))
            if life.held_since is not None:
                held[replica].add(life.attempt_id)
        for replica, tokens in produced.items():
            self.desk.tell(Progressed(replica, tokens, heard[replica], frozenset(held[replica])))
        now, stall_s = self.clock.now, self.desk.policy.bounds.client_stall_s
        for life in list(self.open.values()):
            if life.held_since is not None and life.held_since < now - stall_s:
                life.cut_off()
        for life in list(self.open.values()):
            self._look_for_stall(life, now)
        self._look_for_stuck(now)

    def _look_for_stall(self, life: Life, now: float) -> None:
        since = life.silent_since
        if since is None or life.stage not in (Stage.SENT, Stage.PASSING):
            return
        if is_stalled(
            self.desk.scheduler,
            life.attempt_id,
            silent_since=since,
            has_begun=life.stage is Stage.PASSING,
            now=now,
        ):
            life.give_up()

    def _look_for_stuck(self, now: float) -> None:
        silent: dict[str, tuple[Silent, Life]] = {}
        for life in self.open.values():
            since = life.silent_since
            is_open = life.stage in (Stage.SENT, Stage.PASSING)
            if since is not None and is_open and now - since >= STALL_S:
                told = Silent(life.attempt_id, since, life.stage is Stage.PASSING)
                silent[life.attempt_id] = told, life
        for id in stuck(self.desk.scheduler, [told for told, _ in silent.values()], now):
            silent[id][1].give_up(Blame.STUCK)

    # --- faults ---------------------------------------------------------------------------------

    def _plan(self, fault: Fault) -> None:
        if fault.kind is FaultKind.FLAPPING:
            turns = max(1, int(fault.factor))
            turn_s = fault.duration_s / turns
            for turn in range(turns):
                crash = replace(
                    fault,
                    kind=FaultKind.CRASH,
                    at=fault.at + turn * turn_s,
                    duration_s=turn_s * FLAPS_DOWN_SHARE,
                )
                self._plan(crash)
            return
        self.clock.at(fault.at, partial(self._begin, fault))
        self.clock.at(fault.at + fault.duration_s, partial(self._end, fault))

    def _begin(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.SHUTDOWN:
                self.is_closed = True
                self.desk.tell(Closed())
            case FaultKind.POLICY:
                self._change(fault.policy)
            case FaultKind.DRAIN:
                if fault.replica in self.desk.servers:
                    self.desk.tell(DrainAsked(fault.replica))
            case FaultKind.REMOVE:
                if fault.replica in self.desk.servers:
                    self.desk.forget(fault.replica)
                    self.desk.tell(ReplicaRemoved(fault.replica))
            case _:
                self.servers[fault.replica].suffer(fault)

    def _end(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.SHUTDOWN:
                for life in list(self.open.values()):
                    life.shut_down()
            case FaultKind.POLICY:
                pass
            case FaultKind.DRAIN:
                self.desk.tell(DrainAsked(fault.replica, draining=False))
            case FaultKind.REMOVE:
                if fault.replica not in self.desk.servers:
                    self.desk.configure(self.servers[fault.replica])
            case _:
                self.servers[fault.replica].recover(fault)

    def _change(self, policy: Policy | None) -> None:
        """Requests of a tier that is no more go to the last one."""
        assert policy is not None, "a change of policy names the new one"
        old, names = self.desk.policy, [tier.name for tier in policy.tiers]
        moved_to = {tier.name: names[-1] for tier in old.tiers if tier.name not in names}
        ranks = {
            rank: names.index(moved_to.get(tier.name, tier.name))
            for rank, tier in enumerate(old.tiers)
        }
        self.desk.tell(PolicyChanged(policy, moved_to))
        self._tier_of = {first: ranks[rank] for first, rank in self._tier_of.items()}
        for life in self.open.values():
            life.move(ranks)
