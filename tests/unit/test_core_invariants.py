"""The judge of the books must notice each kind of error, or it protects nobody."""

from collections.abc import Callable

import pytest

from gateway.core.fairqueue import FairQueue
from gateway.core.flows import Flow, Lane, Waiting
from gateway.core.invariants import check
from gateway.core.kinds import Kind
from gateway.core.ledger import Ledger
from gateway.core.policy import Ageing
from gateway.core.pool import Pool
from gateway.core.scheduler import Scheduler
from tests.support.script import Script, four_tiers


def busy() -> Scheduler:
    """A scheduler with something of everything in it."""
    policy = four_tiers(
        within_user="prefix", order="weighted", ageing=Ageing(after_s=5.0), recall=False
    )
    script = Script(policy).replica("r", slots=2).replica("s", slots=2, models=("x",))
    script.arrive_many("a", 5, user="a", tier=0, body_bytes=10)
    script.arrive_many("b", 3, user="b", tier=2, tenant="other", prompt_tokens=500)
    script.arrive("again", user="a", tier=0, is_continuation=True)
    script.arrive("x", model="x").first_token("a0").report("r", running=2, waiting=0)
    check(script.scheduler)
    return script.scheduler


def pool_of(scheduler: Scheduler) -> Pool:
    """The pool in which something waits."""
    return next(pool for pool in scheduler.pools if pool.count)


def ledger_of(scheduler: Scheduler) -> Ledger:
    """The ledger with work on it."""
    return scheduler.replicas["r"].ledger


def queue_of(scheduler: Scheduler) -> FairQueue:
    """The queue of tier 0."""
    return pool_of(scheduler).queues[0]


def tenant_of(scheduler: Scheduler) -> Flow:
    """A tenant with something waiting."""
    return queue_of(scheduler).tenants["t"]


def user_of(scheduler: Scheduler) -> Flow:
    """A user with something waiting."""
    return tenant_of(scheduler).users["a"]


def waiting_of(scheduler: Scheduler) -> Waiting:
    """One that waits."""
    return scheduler.waiting["a4"]


def lane_of(scheduler: Scheduler) -> Lane:
    """Where that one waits."""
    lane = waiting_of(scheduler).lane
    assert lane is not None
    return lane


def shift(target: Callable[[Scheduler], object], name: str) -> Callable[[Scheduler], None]:
    """Falsify one figure by one."""

    def falsify(scheduler: Scheduler) -> None:
        owner = target(scheduler)
        setattr(owner, name, getattr(owner, name) + 1)

    return falsify


def put(target: Callable[[Scheduler], object], name: str, value: object) -> Callable[..., None]:
    """Put something else in the place of that attribute."""
    return lambda scheduler: setattr(target(scheduler), name, value)


def forget_grant(scheduler: Scheduler) -> None:
    """A slot leaks."""
    del scheduler.granted["a0"]


def forget_waiting(scheduler: Scheduler) -> None:
    """A request is in a queue that nobody knows of."""
    scheduler.room.leave(waiting_of(scheduler))


def wait_and_run(scheduler: Scheduler) -> None:
    """One id in two states."""
    scheduler.granted["a4"] = scheduler.granted["a0"]


def lose_replica(scheduler: Scheduler) -> None:
    """A pool without one of its replicas."""
    scheduler.pools[0].replicas.clear()


def lose_lane(scheduler: Scheduler) -> None:
    """A flow that no heap lists: it is never served."""
    parent = lane_of(scheduler).parent
    assert parent is not None
    parent.heap.clear()


def lose_gate(scheduler: Scheduler) -> None:
    """An open replica that nobody looks at."""
    pool = pool_of(scheduler)
    pool.open.clear()
    pool.replicas["r"].open_tiers = None


def misjudge(scheduler: Scheduler) -> None:
    """A gate that is thought open."""
    pool = pool_of(scheduler)
    pool.open = dict(pool.replicas)
    pool.replicas["r"].open_tiers = 4


def stale_score(scheduler: Scheduler) -> None:
    """A replica that looked freer once."""
    pool_of(scheduler).replicas["r"].scores[0] = 99.0


def stale_away(scheduler: Scheduler) -> None:
    """Headroom of a tier that is gone."""
    pool = pool_of(scheduler)
    replica = pool.replicas["r"]
    replica.away, replica.away_of = (1, 1, 1, 1), pool.gates.reserved


def other_class(scheduler: Scheduler) -> None:
    """A request that may go where it failed."""
    kind = lane_of(scheduler).kind
    kind.replicas = frozenset({"r", "s"})


def reopen(scheduler: Scheduler) -> None:
    """A ticket that is still valid after the grant."""
    scheduler.granted["a0"][0].waiting.ticket = 7


def miscount_tier(scheduler: Scheduler) -> None:
    """A tier that seems to be present."""
    ledger_of(scheduler).by_tier[3] += 1


def lose_front(scheduler: Scheduler) -> None:
    """The rest of a stream that is not first any more."""
    queue_of(scheduler).front.clear()


def lose_group(scheduler: Scheduler) -> None:
    """Requests whose common prefix is forgotten."""
    groups = lane_of(scheduler).groups
    assert groups is not None
    groups.clear()


def lose_elder(scheduler: Scheduler) -> None:
    """A request that never ages."""
    elders = pool_of(scheduler).elders
    assert elders is not None
    elders._by_kind.clear()


def reorder(scheduler: Scheduler) -> None:
    """A heap whose first is not the smallest."""
    lane_of(scheduler).requests.entries.reverse()


def earlier_share(scheduler: Scheduler) -> None:
    """A tier with an old low tag."""
    shares = pool_of(scheduler).shares
    assert shares is not None
    shares._entered[0] = shares.starts[0] + 1.0


def strange_pool(scheduler: Scheduler) -> None:
    """A model that is looked up where it is not served."""
    scheduler.pool_by_model["m"] = next(each for each in scheduler.pools if not each.count)


ERRORS: dict[str, tuple[Callable[[Scheduler], None], str]] = {
    "sequences": (shift(ledger_of, "sequences"), "ledger of r: sequences"),
    "in flight": (shift(ledger_of, "in_flight"), "ledger of r: in flight"),
    "kv": (shift(ledger_of, "kv_tokens"), "ledger of r: KV tokens"),
    "unstarted": (shift(ledger_of, "unstarted_sequences"), "unstarted sequences"),
    "prompt": (shift(ledger_of, "unstarted_prompt_tokens"), "unstarted prompt tokens"),
    "by tier": (miscount_tier, "grants by tier"),
    "pool count": (shift(pool_of, "count"), "pool: count"),
    "slotless": (shift(pool_of, "slotless"), "without need of a slot"),
    "queue count": (shift(queue_of, "count"), "queue: count"),
    "queue kv": (shift(queue_of, "kv_tokens"), "queue: KV tokens"),
    "active users": (shift(queue_of, "active_users"), "active users"),
    "active tenants": (shift(queue_of, "active_weight"), "weights of the active tenants"),
    "weights": (shift(tenant_of, "active_weight"), "weights of the active users"),
    "head costs": (put(queue_of, "_head_costs", (0.0, 0.0)), "costs of the heads"),
    "tenant count": (shift(tenant_of, "count"), "queue: by tenant|tenant: count"),
    "tenant start": (put(tenant_of, "entered", 1e9), "tenant: refunded below"),
    "user count": (shift(user_of, "count"), "tenant: count|user: count"),
    "user cost": (shift(user_of, "cost"), "user: cost"),
    "user start": (put(user_of, "start", -1.0), "user: refunded below"),
    "lane count": (shift(lane_of, "count"), "user: count|lanes: count"),
    "lane tag": (put(lane_of, "listed_at", 1e9), "not in its parent's heap"),
    "lane kind": (put(lane_of, "kind", Kind(frozenset(), size=0, sequences=1, decodes=True)),
                  "lanes: of another class"),
    "lane lost": (lose_lane, "not in its parent's heap"),
    "key": (shift(waiting_of, "key"), "key in the heap"),
    "order": (reorder, "out of order"),
    "front": (lose_front, "front: classes|ids in the queues|pool: count"),
    "groups": (lose_group, "groups: first blocks"),
    "elders": (lose_elder, "elders: classes"),
    "shares": (earlier_share, "shares: a tier was refunded"),
    "class": (other_class, "class of .*: replicas"),
    "bytes": (shift(lambda scheduler: scheduler.room.all, "body_bytes"), "tally of all: bytes"),
    "tokens": (shift(lambda scheduler: scheduler.room.by_tenant["t"], "tokens"), "tally of t"),
    "by user": (shift(lambda scheduler: scheduler.room.by_user["t", "a"], "requests"),
                "tally of .*'a'.*: requests"),
    "by rank": (shift(lambda scheduler: scheduler.room.by_tier[0], "requests"), "tally of tier 0"),
    "grant": (forget_grant, "all ledgers"),
    "waiting": (forget_waiting, "ids in the queues"),
    "deadline": (shift(waiting_of, "deadline"), "deadlines: key"),
    "nobody asked": (put(lambda scheduler: scheduler, "wake_at", None), "asked to be woken"),
    "asked late": (put(lambda scheduler: scheduler, "wake_at", 1e9), "after the first deadline"),
    "two states": (wait_and_run, "also granted"),
    "ticket": (put(waiting_of, "ticket", 0), "pool: count|queue: count"),
    "old ticket": (reopen, "ticket of one that runs"),
    "replicas": (lose_replica, "pools: replicas"),
    "strange pool": (strange_pool, "looked up in a stranger"),
    "gate lost": (lose_gate, "not looked at"),
    "gate": (misjudge, "replica r: open tiers"),
    "score": (stale_score, "replica r: freeness"),
    "away": (stale_away, "replica r: slots kept away"),
    "usable": (put(lambda scheduler: scheduler.replicas["r"], "is_draining", True), "usable"),
}  # fmt: skip


def test_sound_books_pass() -> None:
    """A judge that always complains would be switched off."""
    check(busy())


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_in_the_books_is_named(name: str) -> None:
    """Who debugs a leak needs to know which sum is off."""
    scheduler = busy()
    falsify, complaint = ERRORS[name]
    falsify(scheduler)
    with pytest.raises(AssertionError, match=complaint):
        check(scheduler)
