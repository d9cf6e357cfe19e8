"""One gateway's place among several, in a live process: heartbeats, messages, and who is told.

What is decided about requests is the member's affair, who waits for it the dispatcher's.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.cluster.follower import Phase
from gateway.cluster.member import Member
from gateway.cluster.messages import Left, Message
from gateway.cluster.ports import BEAT_S, LEASE_S, Lease, LinkError, Transport
from gateway.core.messages import Decision

LOGGER = logging.getLogger("fairgate.cluster")
JOIN_S: Final = LEASE_S
"""So long after its start a gateway waits for the store before it decides alone."""
CLOSE_S: Final = 1.0


class Seat:
    """The asyncio side of a `Member`."""

    def __init__(
        self,
        member: Member,
        transport: Transport,
        lease: Lease,
        *,
        carry_out: Callable[[list[Decision]], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`carry_out` delivers decisions to this gateway's own requests."""
        self.member = member
        self._transport = transport
        self._lease = lease
        self._clock = clock
        self._carry_out = carry_out
        self._hurry = asyncio.Event()
        self._alone_from = float("inf")
        """Before this instant a store that is not there yet is waited for."""
        self._was_degraded = False
        self._beating: asyncio.Task[None] | None = None
        self.losses = 0
        """How often the store was lost."""

    async def run(self) -> None:
        """Be one of several until cancelled."""
        self._alone_from = self._clock() + JOIN_S
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._transport.run(self._heard, self._lost))
            self._beating = tasks.create_task(self._beats())

    def retire(self) -> None:
        """Let others lead from now on; everything else goes on."""
        self._carry_out(self.member.retire(self._clock()))
        self._hurry.set()

    async def close(self) -> None:
        """Say good-bye, so that nobody has to wait for a lease to end."""
        self._alone_from = float("inf")
        if self._beating is not None:
            # A heartbeat after the farewell would say that it is there again.
            self._beating.cancel()
        with suppress(LinkError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._lease.beat(self.member.farewell())
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._transport.close()

    @property
    def is_degraded(self) -> bool:
        """Whether this gateway decides alone about anything, although it should be one of many."""
        return any(each.phase is Phase.ALONE for each in self.member.followers.values())

    def families(self) -> Iterator[Metric]:
        """What `/metrics` tells of it."""
        member = self.member
        phase = GaugeMetricFamily(
            "fairgate_cluster_phase",
            "1 for the phase that this gateway is in, by pool.",
            labels=("pool", "phase"),
        )
        epoch = GaugeMetricFamily(
            "fairgate_cluster_epoch", "Epoch of the pool's leader.", labels=("pool",)
        )
        followers = GaugeMetricFamily(
            "fairgate_cluster_followers", "Gateways that this one decides for.", labels=("pool",)
        )
        for pool, each in member.followers.items():
            phase.add_metric((pool, each.phase.value), 1.0)
            epoch.add_metric((pool,), float(each.epoch))
            if pool in member.led:
                followers.add_metric((pool,), float(len(member.led[pool].guests)))
        yield from (phase, epoch, followers)
        yield GaugeMetricFamily(
            "fairgate_cluster_gateways", "Gateways that are there.", float(len(member.gateways))
        )
        yield GaugeMetricFamily(
            "fairgate_cluster_degraded",
            "1 while this gateway decides alone, within its part of every replica.",
            float(self.is_degraded),
        )
        yield CounterMetricFamily(
            "fairgate_cluster_resyncs",
            "Sessions begun anew with a leader.",
            float(member.deciders.resyncs),
        )
        yield CounterMetricFamily(
            "fairgate_cluster_losses", "Times that the store was lost.", float(self.losses)
        )

    async def _beats(self) -> None:
        while True:
            asked_at = self._clock()
            try:
                await self._beat(asked_at)
            except Exception:
                # Whatever is wrong between gateways, each can serve alone.
                LOGGER.exception("a heartbeat failed")
                self._lost()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, asked_at + BEAT_S - self._clock())):
                    await self._hurry.wait()
            self._hurry.clear()

    async def _beat(self, asked_at: float) -> None:
        try:
            standing = await self._lease.beat(self.member.bid(asked_at))
        except LinkError:
            self._lost()
        else:
            self._alone_from = 0.0
            self._carry_out(self.member.stands(standing, self._clock(), asked_at=asked_at))
        self._carry_out(self.member.beat(self._clock()))
        self._tell_if_degraded()

    def _heard(self, messages: Sequence[Message]) -> None:
        try:
            self._hear(messages)
        except Exception:
            LOGGER.exception("what another gateway said was not understood")
            self._lost()

    def _hear(self, messages: Sequence[Message]) -> None:
        self._carry_out(self.member.heard(messages, self._clock()))
        if any(isinstance(each, Left) for each in messages):
            self._hurry.set()

    def _lost(self) -> None:
        now = self._clock()
        if now >= self._alone_from and not self.member.is_apart:
            self.losses += 1
            self._carry_out(self.member.apart(now))
            self._tell_if_degraded()

    def _tell_if_degraded(self) -> None:
        if self.is_degraded == self._was_degraded:
            return
        self._was_degraded = self.is_degraded
        if self._was_degraded:
            LOGGER.warning(
                "degraded: this gateway decides alone, as one of %d", self.member.sharers
            )
        else:
            LOGGER.warning("degraded no more: this gateway is one of several again")
