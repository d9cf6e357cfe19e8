"""The judge of the books must notice each kind of error, or it protects nobody."""

from collections.abc import Callable

import pytest

from gateway.core.invariants import check
from gateway.core.scheduler import Scheduler
from tests.support.script import Script, four_tiers


def busy() -> Scheduler:
    """A scheduler with something of everything in it."""
    script = Script(four_tiers()).replica("r", slots=2).replica("s", slots=2, models=("x",))
    script.arrive_many("a", 5, user="a", tier=0, body_bytes=10)
    script.arrive_many("b", 3, user="b", tier=2, tenant="other", prompt_tokens=500)
    script.arrive("x", model="x").first_token("a0").report("r", running=2, waiting=0)
    return script.scheduler


def ledger_of(scheduler: Scheduler) -> object:
    """The ledger with work on it."""
    return scheduler.replicas["r"].ledger


def shift(target: Callable[[Scheduler], object], name: str) -> Callable[[Scheduler], None]:
    """Falsify one figure by one."""

    def falsify(scheduler: Scheduler) -> None:
        owner = target(scheduler)
        setattr(owner, name, getattr(owner, name) + 1)

    return falsify


def queue_of(scheduler: Scheduler) -> object:
    """The queue of tier 0."""
    return next(pool for pool in scheduler.pools if pool.waiting).queues[0]


def flow_of(scheduler: Scheduler) -> object:
    """A tenant with something waiting."""
    return next(pool for pool in scheduler.pools if pool.waiting).queues[0].tenants["t"]


def user_of(scheduler: Scheduler) -> object:
    """A user with something waiting."""
    return next(pool for pool in scheduler.pools if pool.waiting).queues[0].tenants["t"].users["a"]


def forget_grant(scheduler: Scheduler) -> None:
    """A slot leaks."""
    del scheduler.granted["a0"]


def forget_waiting(scheduler: Scheduler) -> None:
    """A request is in a queue that nobody knows of."""
    scheduler.room.leave(scheduler.room.requests["a4"])


def forget_deadline(scheduler: Scheduler) -> None:
    """A request whose patience never ends."""
    scheduler.room.deadlines.discard(scheduler.room.requests["a4"])


def wait_and_run(scheduler: Scheduler) -> None:
    """One id in two states."""
    scheduler.granted["a4"] = scheduler.granted["a0"]


def lose_count(scheduler: Scheduler) -> None:
    """A user's bound is off."""
    scheduler.room.by_user["t", "a"] += 1


def lose_replica(scheduler: Scheduler) -> None:
    """A pool without one of its replicas."""
    scheduler.pools[0].replicas.clear()


def misprice_heads(scheduler: Scheduler) -> None:
    """A floor that is owed too early."""
    queue = next(pool for pool in scheduler.pools if pool.waiting).queues[0]
    queue._head_costs = (0.0, 0.0)


def miscount_tier(scheduler: Scheduler) -> None:
    """A tier that seems to be present."""
    scheduler.replicas["r"].ledger.by_tier[3] += 1


ERRORS: dict[str, tuple[Callable[[Scheduler], None], str]] = {
    "sequences": (shift(ledger_of, "sequences"), "ledger of r: sequences"),
    "kv": (shift(ledger_of, "kv_tokens"), "ledger of r: KV tokens"),
    "unstarted": (shift(ledger_of, "unstarted_sequences"), "unstarted sequences"),
    "prompt": (shift(ledger_of, "unstarted_prompt_tokens"), "unstarted prompt tokens"),
    "by tier": (miscount_tier, "grants by tier"),
    "queue count": (shift(queue_of, "count"), "queue: count"),
    "head costs": (misprice_heads, "costs of the heads"),
    "tenant count": (shift(flow_of, "count"), "queue: by tenant|tenant: count"),
    "tenant key": (shift(flow_of, "start"), "tenant: key"),
    "user count": (shift(user_of, "count"), "tenant: count|user: count"),
    "user cost": (shift(user_of, "cost"), "user: cost"),
    "user key": (shift(user_of, "start"), "user: key"),
    "bytes": (shift(lambda scheduler: scheduler.room, "body_bytes"), "waiting: bytes"),
    "grant": (forget_grant, "all ledgers"),
    "waiting": (forget_waiting, "ids in the queues"),
    "deadline": (forget_deadline, "no deadline"),
    "two states": (wait_and_run, "also granted"),
    "by user": (lose_count, "waiting: by user"),
    "replicas": (lose_replica, "pools: replicas"),
}


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
