"""What a gateway looks after by itself, by the clock: its own load, its buffers, who is gone.

It is asked by nobody and decides about no request: tiers that stay out, memory for each answer and
forgotten replicas follow from what it sees.
"""

import asyncio
import logging
from typing import Protocol

from gateway.admin.operators import Operators
from gateway.api.doors import Doors
from gateway.api.relay import Relay
from gateway.core.scheduler import Scheduler
from gateway.runtime.lag import LagMeter
from gateway.runtime.pressure import Pressure, floor_of, memory_limit, resident_bytes
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.upstream.fleet import Fleet

LOGGER = logging.getLogger("fairgate.overload")
SWEEP_EVERY_S = 1.0
BUFFER_BYTES_MIN = 64 << 10


class Kept(Protocol):
    """The parts of a gateway that are looked after."""

    settings: Settings
    scheduler: Scheduler
    metrics: Metrics
    doors: Doors
    relay: Relay
    fleet: Fleet
    operators: Operators


class Upkeep:
    """Looks at the loop's lag ten times a second, and at the rest once a second."""

    def __init__(self, kept: Kept, *, sharers: int) -> None:
        """`sharers`: so many processes like this one share the memory of the machine."""
        self._kept = kept
        self._sharers = sharers
        self.lag = LagMeter(self._looked)
        self.pressure = Pressure(lag_max_s=self._lag_max_s, memory_max=self._memory_max())

    def configure(self) -> None:
        """The settings have changed."""
        self.pressure.configure(lag_max_s=self._lag_max_s, memory_max=self._memory_max())
        self.forget_empty()

    async def run(self) -> None:
        """Forget what is no longer wanted, share what there is; for ever."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            self.forget_empty()
            self._share_buffers()
            self._kept.operators.look()

    def forget_empty(self) -> None:
        """Forget replicas that are no longer wanted, once nothing runs there."""
        kept = self._kept
        if kept.fleet.sweep(self._is_empty):
            kept.metrics.forget_advice(kept.scheduler.pool_by_model.keys())

    def _is_empty(self, name: str) -> bool:
        replica = self._kept.scheduler.replicas.get(name)
        return replica is None or not replica.ledger.grants

    def _share_buffers(self) -> None:
        """Where many answers run, a new connection holds less of its own for a slow client."""
        policy = self._kept.scheduler.policy
        bounds = policy.bounds
        share = bounds.stream_buffers_bytes // max(1, len(self._kept.relay.open))
        self._kept.fleet.configure(
            scrape_interval_s=policy.scrape_interval_s,
            stream_buffer_bytes=max(BUFFER_BYTES_MIN, min(bounds.stream_buffer_bytes, share)),
        )

    def _looked(self, lag_s: float) -> None:
        """The lag was looked at: whoever must stay out for it does, from now on."""
        kept = self._kept
        kept.metrics.lag(lag_s)
        tiers = len(kept.scheduler.policy.tiers)
        before = kept.doors.floor
        level = self.pressure.look(lag_s, resident_bytes(), tiers)
        kept.doors.floor = floor_of(level, tiers)
        if kept.doors.floor != before:
            names = kept.settings.tier_names[kept.doors.floor :] if level else ()
            LOGGER.warning(
                "refused while the gateway is overloaded: %s", ", ".join(names) or "nobody any more"
            )

    @property
    def _lag_max_s(self) -> float:
        return self._kept.settings.bounds.loop_lag_s

    def _memory_max(self) -> int | None:
        """Bytes that this process may use."""
        return self._kept.settings.bounds.memory or memory_limit(sharers=self._sharers)
