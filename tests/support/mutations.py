"""Small faults to be planted in the core, and for each the test that must notice it.

A test that no fault can fail protects nobody; here each invariant has a fault of its own.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.core import floors, gate, placement, waitroom
from gateway.core.fairqueue import FairQueue, TenantFlow, UserFlow, Waiting
from gateway.core.gate import View
from gateway.core.ledger import Ledger
from gateway.core.messages import Finished, Outcome, Reason
from gateway.core.policy import Policy, Tier
from gateway.core.replica import Replica
from gateway.core.scheduler import Scheduler
from tests.property import test_core_monotone as monotone
from tests.simulation import test_core_fair_shares as shares
from tests.simulation import test_core_saturation as saturation
from tests.support.world import long_run
from tests.unit import test_core_admission as admission
from tests.unit import test_core_fairqueue as fairqueue
from tests.unit import test_core_floors as floor
from tests.unit import test_core_gate as gates
from tests.unit import test_core_placement as places
from tests.unit import test_core_replica as replicas
from tests.unit import test_core_scheduler as scheduling

PIECE = monotone.Piece(tier=0, prompt_tokens=10, output_tokens=10, sequences=1, is_started=False)


@dataclass(frozen=True)
class Mutation:
    """A fault, how to plant it, and the test that must fail then."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    caught_by: Callable[[], object]


def replaced(owner: object, name: str, substitute: object) -> Callable[[pytest.MonkeyPatch], None]:
    """Put `substitute` in the place of that attribute."""
    return lambda patch: patch.setattr(owner, name, substitute)


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing at all."""


def take_without_time(patch: pytest.MonkeyPatch) -> None:
    """A release that does not move virtual time."""
    take = FairQueue.take

    def mutated(self: FairQueue, waiting: Waiting) -> None:
        tenant = self.tenants[waiting.request.tenant]
        before = self.virtual, tenant.virtual
        take(self, waiting)
        self.virtual, tenant.virtual = before

    patch.setattr(FairQueue, "take", mutated)


def push_with_old_tag(patch: pytest.MonkeyPatch) -> None:
    """A flow that was away comes back with the tag it would have had at the beginning."""
    push = FairQueue.push

    def mutated(self: FairQueue, waiting: Waiting) -> None:
        tenant = self.tenants.get(waiting.request.tenant)
        user = tenant.users.get(waiting.request.user) if tenant else None
        was_idle = user is None or not user.count
        push(self, waiting)
        if was_idle:
            tenant = self.tenants[waiting.request.tenant]
            user = tenant.users[waiting.request.user]
            user.start = user.entered = 0.0
            tenant.queues[waiting.kind].set(user, 0.0)

    patch.setattr(FairQueue, "push", mutated)


def charge_without_bound(
    self: FairQueue, tenant: TenantFlow, user: UserFlow | None, cost: float
) -> None:
    """A refund as large as you like."""
    if user is not None:
        user.start += cost / user.weight
        for kind in user.queues:
            tenant.queues[kind].set(user, user.start)
    tenant.start += cost / tenant.weight
    for kind in tenant.queues:
        self.classes[kind].set(tenant, tenant.start)


def leak_failed(patch: pytest.MonkeyPatch) -> None:
    """A failure is not a finish, somebody thought."""
    finished = Scheduler._finished

    def mutated(self: Scheduler, event: Finished, now: float, out: list[Any]) -> None:
        if event.outcome is Outcome.FAILED and event.request_id in self.granted:
            del self.granted[event.request_id]
        else:
            finished(self, event, now, out)

    patch.setattr(Scheduler, "_finished", mutated)


def keep_deadline(self: waitroom.WaitingRoom, waiting: Waiting) -> None:
    """Everything is tidied up but the deadline."""
    request = waiting.request
    del self.requests[request.id]
    self.body_bytes -= request.body_bytes
    self.by_user[request.tenant, request.user] -= 1
    if not self.by_user[request.tenant, request.user]:
        del self.by_user[request.tenant, request.user]


def bounce_to_the_back(patch: pytest.MonkeyPatch) -> None:
    """A bounced request arrives anew."""
    bounced = Scheduler._bounced

    def mutated(self: Scheduler, request_id: str, now: float, out: list[Any]) -> None:
        if request_id in self.granted:
            self.granted[request_id][0].waiting.order = (now, 10**9)
        bounced(self, request_id, now, out)

    patch.setattr(Scheduler, "_bounced", mutated)


def shed_newcomer(self: Scheduler, newcomer: Waiting, now: float, out: list[Any]) -> None:
    """Whoever comes to a full queue is refused."""
    self._evict(newcomer, Reason.QUEUE_FULL, now, out)


def open_to_background(patch: pytest.MonkeyPatch) -> None:
    """The last tier is forgotten in the speed gate."""
    closed_by = gate.closed_by

    def mutated(view: View, policy: Policy, tier: Tier, reserved: float) -> gate.Closed | None:
        closed = closed_by(view, policy, tier, reserved)
        is_last = tier is policy.tiers[-1]
        return None if is_last and closed is gate.Closed.SPEED else closed

    patch.setattr(monotone, "closed_by", mutated)


def slow_replica() -> Replica:
    """Too slow for anybody, with one request on it."""
    replica = Replica("r", tiers=4)
    replica.configured_slots = 8
    monotone.put(replica, PIECE, "a")
    replica.take_tpot(0.9, 2.4)
    return replica


MUTATIONS = (
    Mutation(
        "the estimate is never settled",
        replaced(Scheduler, "_settle", nothing),
        fairqueue.test_a_wrong_estimate_is_corrected_when_the_request_ends,
    ),
    Mutation(
        "virtual time stands still",
        take_without_time,
        fairqueue.test_idle_time_earns_no_credit,
    ),
    Mutation(
        "idle flows keep their old tag",
        push_with_old_tag,
        fairqueue.test_idle_time_earns_no_credit,
    ),
    Mutation(
        "refunds know no bound",
        replaced(FairQueue, "_charge", charge_without_bound),
        fairqueue.test_a_refund_takes_nobody_below_its_start,
    ),
    Mutation(
        "nobody is charged at all",
        replaced(FairQueue, "_charge", nothing),
        lambda: shares.test_backlogged_users_get_their_shares_and_light_ones_what_they_ask_for(1.0),
    ),
    Mutation(
        "headroom is ignored",
        replaced(gate, "kept", lambda slots, reserved: 0),
        gates.test_headroom_is_kept_for_every_tier_above,
    ),
    Mutation(
        "five more may wait in the engine",
        replaced(gate, "allowance", lambda tier, bridged: tier.queue_limit + 5),
        lambda: saturation.test_never_more_than_the_allowance_and_one_wait_beyond_the_slots(
            tells_slots=True, streams=True, late_s=1.0
        ),
    ),
    Mutation(
        "the gauges are believed",
        replaced(
            Replica,
            "waiting",
            property(lambda self: (self.report.waiting or 0) if self.report else 0),
        ),
        lambda: saturation.test_old_and_zero_gauges_do_not_let_a_cold_burst_in(
            tells_slots=True, old_s=1.0
        ),
    ),
    Mutation(
        "reports are compared with the book of now",
        replaced(Ledger, "at", lambda self, instant: (self.sequences, self.kv_tokens)),
        replicas.test_a_report_is_compared_with_the_book_of_the_instant_it_was_asked_for,
    ),
    Mutation(
        "the speed gate sticks",
        replaced(
            Replica,
            "tpot_over",
            lambda self, limit_s, now: self.tpot_s is not None and self.tpot_s > limit_s,
        ),
        gates.test_a_slow_moment_does_not_keep_the_gate_shut,
    ),
    Mutation(
        "a failed request keeps its slot",
        leak_failed,
        lambda: scheduling.test_however_a_request_ends_its_slot_comes_back(
            is_started=True, outcome=Outcome.FAILED
        ),
    ),
    Mutation(
        "the floor is never owed",
        replaced(floors.Floors, "is_owed", lambda self, tier, cost: False),
        floor.test_the_last_tier_gets_its_share_under_a_saturating_first_one,
    ),
    Mutation(
        "a deadline outlives its request",
        replaced(waitroom.WaitingRoom, "leave", keep_deadline),
        lambda: long_run(0),
    ),
    Mutation(
        "the lowest tier goes first",
        replaced(
            placement,
            "_tiers_in_order",
            lambda pool: (
                (tier, False) for tier in reversed(range(len(pool.queues))) if pool.queues[tier]
            ),
        ),
        lambda: long_run(0),
    ),
    Mutation(
        "the worst-ranked class goes first",
        replaced(
            FairQueue,
            "rank",
            lambda self, waiting: (-self.tenants[waiting.request.tenant].start, -waiting.order[0]),
        ),
        lambda: long_run(0),
    ),
    Mutation(
        "a start opens no gate",
        replaced(Scheduler, "_refill", nothing),
        lambda: long_run(0),
    ),
    Mutation(
        "patience never ends",
        replaced(Scheduler, "_expire", nothing),
        lambda: long_run(0),
    ),
    Mutation(
        "size does not matter",
        replaced(placement, "unfit_by", nothing),
        lambda: long_run(0),
    ),
    Mutation(
        "a die is cast among the fitting replicas",
        replaced(placement, "_freest", lambda replicas, pool, tier: random.choice(replicas)),
        lambda: long_run(0),
    ),
    Mutation(
        "a failed replica is tried again",
        replaced(
            Replica,
            "may_serve",
            lambda self, request: self.is_usable and request.model in self.models,
        ),
        places.test_a_replica_that_failed_a_request_does_not_get_it_again,
    ),
    Mutation(
        "a bounced request goes to the back",
        bounce_to_the_back,
        fairqueue.test_a_bounced_request_goes_back_to_its_place,
    ),
    Mutation(
        "a full queue refuses whoever comes",
        replaced(Scheduler, "_shed", shed_newcomer),
        admission.test_a_full_queue_refuses_the_heaviest_user_not_the_one_who_comes,
    ),
    Mutation(
        "the last tier passes the speed gate",
        open_to_background,
        lambda: monotone.assert_ceilings_fall(slow_replica()),
    ),
    Mutation(
        "more unstarted work looks freer",
        replaced(monotone, "freeness", lambda replica, _, tier: len(replica.ledger.unstarted)),
        lambda: monotone.assert_no_freer(
            slow_replica(), lambda replica: monotone.put(replica, PIECE, "more")
        ),
    ),
)
