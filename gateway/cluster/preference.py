"""Which gateway should rather lead a pool: one order for all gateways, another one for each pool.

Where something is counted over all pools one gateway should lead all of them: they are *bundled*.
"""

from collections.abc import Collection
from zlib import crc32


def turns(
    gateway: str,
    pool: str,
    gateways: Collection[str],
    *,
    is_bundled: bool,
    leads: bool,
    others_lead: bool,
) -> int:
    """For how many others `gateway` should wait before it takes a pool that nobody leads.

    `leads`, `others_lead`: whether it, and whether any other one, leads a pool already.
    """
    if is_bundled and leads:
        return 0
    order = sorted(gateways, key=lambda each: preference("" if is_bundled else pool, each))
    before = order.index(gateway) if gateway in order else 0
    return before + (len(order) if is_bundled and others_lead else 0)


def gives_way(gateway: str, leaders: Collection[str]) -> bool:
    """Whether one of several leaders of bundled pools is it that leaves them to another."""
    own = preference("", gateway)
    return any(preference("", each) < own for each in leaders)


def preference(pool: str, gateway: str) -> tuple[int, str]:
    """Its place in the order; the smallest comes first."""
    return crc32(f"{gateway} {pool}".encode()), gateway
