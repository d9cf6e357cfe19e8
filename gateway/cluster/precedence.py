"""Who should rather lead a pool, as all gateways see it without asking: spread out, or all by one.

One gateway should lead all pools where something is counted over all of them; else each pool is a
core of its own, and the more gateways lead, the better.
"""

from collections.abc import Collection
from zlib import crc32


def ranked_before(
    name: str, gateways: Collection[str], pool: str, leaders: Collection[str] | None
) -> int:
    """How many others should rather lead `pool`.

    `leaders`: those that lead any pool, where one should lead all; None: each pool has an order of
    its own.
    """
    if leaders is None:
        return _place(name, gateways, pool)
    if name in leaders:
        return 0
    return _place(name, gateways, "") + (len(gateways) if leaders else 0)


def gives_way(name: str, leaders: Collection[str]) -> bool:
    """Whether one of the others that lead, too, should lead what `name` leads."""
    own = _preference("", name)
    return any(_preference("", each) < own for each in leaders)


def _place(name: str, gateways: Collection[str], pool: str) -> int:
    own = _preference(pool, name)
    return sum(_preference(pool, each) < own for each in gateways)


def _preference(pool: str, gateway: str) -> tuple[int, str]:
    return crc32(f"{gateway} {pool}".encode()), gateway
