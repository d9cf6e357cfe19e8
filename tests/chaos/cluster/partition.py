"""Inside a network of its own: the leader's packets to Redis are dropped, and later let through.

`python -m tests.chaos.cluster.partition FOLDER` does it and says how it went; it needs a network
namespace around it, since it changes the firewall.
"""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.chaos.cluster.house import House, Member, are_one
from tests.chaos.cluster.verdict import RECOVERY_S, tried
from tests.chaos.cluster.watching import taken_s
from tests.support.chaos_proxy import NONE, Trouble
from tests.support.redis_server import running_redis

PARTED_S = 8.0
DEGRADED_S = 1.5

Wall = Callable[[Member, bool], Awaitable[None]]
"""Puts a wall between a gateway and Redis, or takes it away."""


async def by_firewall(member: Member, is_up: bool) -> None:
    """Packets are dropped in both directions."""
    assert member.way is not None
    for flag in ("--dport", "--sport"):
        words = ["INPUT", "-p", "tcp", flag, str(member.way.port), "-j", "DROP"]
        await asyncio.to_thread(
            subprocess.run, ["iptables", "-I" if is_up else "-D", *words], check=True
        )


async def by_proxy(member: Member, is_up: bool) -> None:
    """What goes through the line does not arrive, where no firewall can be had."""
    assert member.way is not None
    await member.way.set(Trouble(blackhole=True, accepts_only=True) if is_up else NONE)


async def parted(folder: Path, wall: Wall) -> str:
    """Cut the leader off from Redis under load, and let it back."""
    (folder / "redis").mkdir()
    with running_redis(folder / "redis", ("--save", "", "--appendonly", "no")) as redis:
        said: list[str] = []
        async with tried(folder, "", said.append, way_to=redis.port) as case:
            case.figures = await _part(case.house, wall)
    return said[0]


async def _part(found: House, wall: Wall) -> str:
    leader = await found.chief(RECOVERY_S)
    others = [member for member in found.members if member is not leader]
    await wall(leader, True)
    alone_s = await taken_s(lambda: found.all_alone([leader]), DEGRADED_S)
    led_s = await taken_s(lambda: are_one(others), RECOVERY_S)
    await asyncio.sleep(PARTED_S)
    await wall(leader, False)
    back_s = await taken_s(found.is_whole, RECOVERY_S)
    return (
        f"cut off, it was alone after {alone_s:.2f} s, the others had a leader {led_s:.2f} s "
        f"later; all one {back_s:.2f} s after the wall was gone"
    )


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print(asyncio.run(parted(Path(sys.argv[1]), by_firewall)))  # noqa: T201 - its result
