"""A gateway's place among several as it is put together from settings: nothing is connected."""

from pathlib import Path

from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.core.scheduler import Scheduler
from gateway.membership import seated, told_where
from gateway.runtime.berth import Berth
from gateway.settings import load_settings
from gateway.tenancy.limits import Allowance, Limits, Need, Owner

TEAM = Owner("tenant", "acme")
WORKERS = 4


def a_berth(of: int) -> Berth:
    """The first of so many workers."""
    return Berth(
        place=0, of=of, sockets=(), operators=(), alive=0, folder=Path("/"), admin_sha256=None
    )


async def test_workers_that_never_reached_redis_take_their_part_of_a_limit_each() -> None:
    """Eight workers that start while Redis is down would let a tenant through eight times."""
    redis = {"redis.url": "redis://127.0.0.1:9/0", "replicas": ["http://127.0.0.1:9"]}
    settings = load_settings(config=None, environ={}, overrides=redis)

    def clock() -> float:
        return 1_000.0

    limits = Limits(clock, clock)
    limits.configure({TEAM: Allowance(requests_per_minute=8)})
    scheduler = Scheduler(Policy(tiers=DEFAULT_TIERS))
    _, seat, shared = seated(
        settings, scheduler, limits, clock=clock, wall=clock, advised=lambda _: None
    )
    assert shared is not None
    told_where(seat, settings, 9, a_berth(WORKERS))
    holders = limits.holders_of("acme", "", "")
    verdicts = [await shared.reserve(holders, Need(1, 1)) for _ in range(3)]
    assert [each.refused is None for each in verdicts] == [True, True, False]
