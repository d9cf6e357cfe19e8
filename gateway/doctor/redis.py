"""What is wrong with a Redis: how far away it is, whether it keeps things, whose clock it has.

It asks over the client that the store uses; what several gateways need of it is `check`'s.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from gateway.check import Finding
from gateway.tenancy.store.redis_client import client

PINGS: Final = 10
TIMEOUT_S: Final = 3.0
LATENCY_S_MAX: Final = 0.02
"""Limits and hand-overs take some of these each; above it they are felt."""
CLOCK_S_MAX: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """What one Redis says, and how fast."""

    info: Mapping[str, Any]
    ping_s: float
    """The middle one of some."""
    clock_ahead_s: float
    can_write: bool = True


async def facts_of(url: str, *, wall: Callable[[], float] = time.time) -> RedisFacts:
    """Ask a Redis by URL. Raises OSError, RedisError or TimeoutError."""
    redis = client(url, connections_max=1, wait_s=TIMEOUT_S, socket_s=TIMEOUT_S)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            info = await redis.info()
            took = []
            for _ in range(PINGS):
                began_at = time.monotonic()
                await redis.ping()
                took.append(time.monotonic() - began_at)
            seconds, micros = await redis.time()
            return RedisFacts(
                info=info,
                ping_s=sorted(took)[PINGS // 2],
                clock_ahead_s=int(seconds) + int(micros) / 1e6 - wall(),
                can_write=info.get("role") == "master",
            )
    finally:
        await redis.aclose()


async def of_redis(url: str, *, keeps: bool, where: str) -> list[Finding]:
    """All that is wrong with the Redis at `url`; `keeps`: whether the store is there."""
    scheme = urlsplit(url).scheme
    if scheme not in ("redis", "rediss", "unix"):
        return []  # a sentinel or a cluster: `check` has asked it
    try:
        facts = await facts_of(url.partition("?")[0])
    except (OSError, RedisError, TimeoutError, ValueError) as error:
        reason = str(error) or type(error).__name__
        return [
            Finding(
                "error", where, f"it does not answer: {reason}",
                "start it, or mend its address, its password or the way to it",
                "changes are answered 503" if keeps else "each gateway is on its own",
            )
        ]  # fmt: skip
    return list(judged(facts, keeps=keeps, where=where, is_tls=scheme == "rediss"))


def judged(facts: RedisFacts, *, keeps: bool, where: str, is_tls: bool) -> Iterator[Finding]:
    """Pure: what these facts mean."""
    info = facts.info
    yield Finding(
        "ok", where, f"Redis {info.get('redis_version', '?')}, {facts.ping_s * 1e3:.1f} ms away"
        f"{', TLS' if is_tls else ''}",
    )  # fmt: skip
    if not facts.can_write:
        yield Finding(
            "error", where, "it is a replica, which takes no writes",
            "name the master, or the sentinels that know it", "nothing can be kept or shared there",
        )  # fmt: skip
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        is_bounded = bool(int(info.get("maxmemory", 0)))
        yield Finding(
            "error" if is_bounded and policy.startswith("allkeys") else "warning", where,
            f"maxmemory-policy is {policy}",
            "set maxmemory-policy noeviction",
            "where memory runs out it forgets keys: leases, what was used of limits, records",
        )  # fmt: skip
    if keeps:
        yield from _persistence(info, where)
    if facts.ping_s > LATENCY_S_MAX:
        yield Finding(
            "warning", where, f"a round trip takes {facts.ping_s * 1e3:.0f} ms",
            "put it nearer, or look for what keeps it busy (SLOWLOG GET)",
            "limits and a change of leaders take some round trips each",
        )  # fmt: skip
    if abs(facts.clock_ahead_s) > CLOCK_S_MAX:
        yield Finding(
            "warning", where,
            f"its clock differs from this machine's by {facts.clock_ahead_s:+.0f} s",
            "let NTP keep both",
            "days and months of budgets go by its clock, logs and the audit by this one",
        )  # fmt: skip


def _persistence(info: Mapping[str, Any], where: str) -> Iterator[Finding]:
    if not int(info.get("aof_enabled", 0)):
        yield Finding(
            "warning", where, "it has no append-only file", "set appendonly yes",
            "what was changed since its last snapshot is gone when it crashes",
        )  # fmt: skip
    failed = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        yield Finding(
            "error", where, f"it could not write to its disk ({', '.join(failed)})",
            "make room there, and look into its log", "nothing of what changes is kept",
        )  # fmt: skip
