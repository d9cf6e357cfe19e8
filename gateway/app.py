"""Composition root: Settings in, the wired gateway out. The one file that knows every layer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_urlsafe
from time import monotonic

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from gateway import __version__
from gateway.api.auth import Asking
from gateway.api.doors import Doors, going
from gateway.api.front import Front
from gateway.api.models import ModelTable
from gateway.api.ops import Operations, build_app
from gateway.api.prefix import Prefixes, is_wanted
from gateway.api.readiness import Readiness, readiness
from gateway.api.relay import Relay
from gateway.api.stored import Places, StoredResponses
from gateway.api.watch import watch
from gateway.core.messages import Closed, ScaleAdvised
from gateway.core.scheduler import Scheduler
from gateway.runtime.admission import LocalGate
from gateway.runtime.dispatcher import Dispatcher
from gateway.runtime.stalls import is_stalled
from gateway.settings import DnsLookup, Settings
from gateway.telemetry.log import log_settled
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import SettledRequest
from gateway.tenancy.keys import key_hash
from gateway.tenancy.users import UserNames
from gateway.upstream.discovery import DnsWatch
from gateway.upstream.fleet import Fleet

LOGGER = logging.getLogger("fairgate.scaling")
EXPOSED_HEADERS = (
    "x-request-id", "request-id", "x-fairgate-tier", "x-fairgate-queue-ms", "x-fairgate-replica",
    "x-fairgate-position", "x-fairgate-model", "retry-after", "retry-after-ms", "x-should-retry",
)  # fmt: skip
"""What a web page of an allowed origin may read beside the body."""


class Gateway:
    """Everything that lives as long as the process, wired."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = monotonic) -> None:
        self.settings = settings
        self.clock = clock
        policy = settings.policy()
        self.scheduler = Scheduler(policy)
        self.metrics = Metrics(self.scheduler, clock, version=__version__)
        self.dispatcher = Dispatcher(self.scheduler, clock, advised=self._advised)
        self.fleet = Fleet(
            tell=self.dispatcher.tell,
            clock=clock,
            scrape_interval_s=policy.scrape_interval_s,
            stream_buffer_bytes=policy.bounds.stream_buffer_bytes,
            is_hungry=self._is_hungry,
        )
        self.doors = Doors()
        self.admin_key, admin_key_sha256 = _admin_key(settings)
        keyring = settings.keyring()
        models = ModelTable(
            configured=frozenset(model.name for model in settings.models),
            aliases=settings.model_by_alias,
            cards=self.fleet.cards,
            lists=self.fleet.lists,
        )
        asking = _asking(settings, clock)
        places = Places()
        self.relay = Relay(
            gate=LocalGate(self.dispatcher, taken_back=lambda: self.metrics.recalled("queued")),
            fleet=self.fleet,
            keyring=keyring,
            asking=asking,
            models=models,
            bounds=policy.bounds,
            tiers=settings.tier_names,
            keepalive_after_s=settings.keepalive_after_s,
            clock=clock,
            settled=self._settled,
            prefixes=Prefixes() if is_wanted(policy) else None,
            places=places,
        )
        stored = StoredResponses(places=places, fleet=self.fleet, keyring=keyring, asking=asking)
        operations = Operations(
            keyring=keyring,
            models=models,
            metrics=self.metrics,
            readiness=self._readiness,
            operator_key_sha256=None if settings.is_local else admin_key_sha256,
        )
        self.app = build_app(operations, lifespan=self._lifespan)
        self.asgi: ASGIApp = Front(self.relay, stored, self.app, self.doors)
        if settings.listen.cors_origins:
            # In front of everything: what a page may not read it may as well not have asked.
            self.asgi = CORSMiddleware(
                self.asgi,
                allow_origins=list(settings.listen.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=list(EXPOSED_HEADERS),
            )

    def _readiness(self) -> Readiness:
        return readiness(
            self.scheduler,
            self.fleet.statuses(),
            self.clock(),
            is_leaving=self.doors.is_leaving,
        )

    def announce(self) -> None:
        """Not ready any more; what comes is served all the same."""
        self.doors.announce()

    def refuse(self) -> None:
        """Refuse what comes; what waits and what runs goes on."""
        self.doors.shut()

    def inside(self) -> int:
        """Requests that were let in and have not ended."""
        return self.doors.inside

    def close(self) -> None:
        """Refuse what waits and what comes; what runs goes on."""
        self.doors.shut()
        self.dispatcher.tell(Closed())

    def end(self) -> None:
        """Refuse what waits, end what runs; each client is told."""
        self.close()
        for exchange, task in list(self.relay.open.items()):
            if task is not None:
                exchange.end(task, going())

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            self.fleet.run_in(tasks)
            for address in self.settings.addresses():
                self.fleet.add(address)
            watches = [tasks.create_task(self._resolve(each)) for each in self.settings.lookups()]
            walk = watch(
                self.relay,
                tell=self.dispatcher.tell,
                clock=self.clock,
                client_stall_s=self.scheduler.policy.bounds.client_stall_s,
                is_stalled=partial(is_stalled, self.scheduler),
            )
            watches.append(tasks.create_task(walk))
            try:
                yield
            finally:
                for each in watches:
                    each.cancel()
                self.fleet.close()
                self.dispatcher.close()

    async def _resolve(self, lookup: DnsLookup) -> None:
        """Replicas behind a DNS name come and go; one that vanishes is drained."""

        def changed(added: set[str], vanished: set[str]) -> None:
            for url in added:
                self.fleet.add(lookup.found(url))
            for url in vanished:
                self.fleet.drain(lookup.found(url).name)

        dns = DnsWatch(lookup.host, lookup.port, every_s=lookup.every_s, on_change=changed)
        await dns.run()

    def _is_hungry(self, name: str) -> bool:
        """Slots still to be learnt, and something there to learn them from."""
        replica = self.scheduler.replicas.get(name)
        return replica is not None and replica.slots is None and bool(replica.ledger.grants)

    def _advised(self, advice: ScaleAdvised) -> None:
        self.metrics.advised(advice.models, advice.replicas)
        models = ", ".join(sorted(advice.models))
        less = f" without {advice.remove}" if advice.remove else ""
        LOGGER.info("advised replicas for %s: %d%s", models, advice.replicas, less)

    def _settled(self, record: SettledRequest) -> None:
        self.metrics.settled(record)
        log_settled(record)


def _asking(settings: Settings, clock: Callable[[], float]) -> Asking:
    return Asking(
        tier_ranks={name: rank for rank, name in enumerate(settings.tier_names)},
        service_tiers=settings.tier_by_service_tier,
        users=UserNames(settings.bounds.users_per_tenant, clock, settings.known_users()),
    )


def _admin_key(settings: Settings) -> tuple[str | None, str]:
    """(a key made now, None where one is configured; its hash)."""
    configured = settings.admin.key_sha256
    if configured is not None:
        return None, configured
    made = f"fgadm-{token_urlsafe(24)}"
    return made, key_hash(made.encode("ascii"))
