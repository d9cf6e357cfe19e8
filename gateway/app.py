"""Composition root: Settings in, the wired gateway out. The one file that knows every layer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.types import ASGIApp

from gateway import __version__
from gateway.admin import batches
from gateway.admin.door import Lobby
from gateway.admin.office import Office, homeless_tiers, moves
from gateway.admin.office_routes import routers
from gateway.admin.operators import Operators
from gateway.admin.siblings import siblings_of
from gateway.api.auth import Asking
from gateway.api.background import Backgrounds
from gateway.api.cors import with_cors
from gateway.api.crowd import UNBOUNDED, Crowd
from gateway.api.doors import Doors, going
from gateway.api.front import Front
from gateway.api.isolation import Isolation
from gateway.api.limiting import Limiting
from gateway.api.models import ModelTable
from gateway.api.ops import Operations, build_app
from gateway.api.prefix import Prefixes, is_wanted
from gateway.api.readiness import Readiness, readiness
from gateway.api.relay import Relay
from gateway.api.rules import Rules
from gateway.api.stored import Places, StoredResponses
from gateway.api.watch import watch
from gateway.core.messages import Closed, PolicyChanged, Request, ScaleAdvised
from gateway.core.policy import Policy
from gateway.core.scheduler import Scheduler
from gateway.membership import fellows_of, readiness_of, seated, told_where
from gateway.runtime.admission import LocalGate
from gateway.runtime.berth import Berth
from gateway.runtime.stalls import is_stalled, stuck
from gateway.settings import Settings, SettingsError
from gateway.telemetry.log import set_log_level
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.writers import Writers
from gateway.tenancy.keys import Keyring
from gateway.tenancy.limits import Limits
from gateway.tenancy.spending import Spending, Sums
from gateway.tenancy.store.opening import store_of
from gateway.tenancy.store.port import Store
from gateway.tenancy.users import UserNames
from gateway.upkeep import Upkeep
from gateway.upstream.fleet import Fleet
from gateway.upstream.roster import Roster
from gateway.vitals import told_also

if TYPE_CHECKING:
    from gateway.batching import Batching

LOGGER = logging.getLogger("fairgate.scaling")
RELOADS = logging.getLogger("fairgate.reload")
FIXED = frozenset({"batches", "listen", "redis", "store"})
"""Top-level keys that a running gateway cannot change."""
OPERATORS_MAX = 256
"""Connections to the operators' own listener."""


class Gateway:
    """Everything that lives as long as the process, wired."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = monotonic,
        *,
        store: Store | None = None,
        wall: Callable[[], float] = time,
        sums: Sums | None = None,
        berth: Berth | None = None,
    ) -> None:
        """`store`: None: the one that is configured. `wall` tells seconds since 1970.

        `sums` keeps what is spent of budgets; None: the store does. `berth`: its place, where it
        is one of several workers.
        """
        self.settings = settings
        self._berth = berth
        self.clock, self.wall = clock, wall
        self.limits = Limits(clock, wall)
        self.limits.configure(settings.allowances())
        policy = settings.policy()
        self.scheduler = Scheduler(policy)
        self.metrics = Metrics(self.scheduler, clock, version=__version__)
        self.siblings = siblings_of(berth, self.metrics.exposed)
        self.writers = Writers(clock, __version__)
        self.upkeep = Upkeep(self, sharers=berth.of if berth else 1)
        self.lag = self.upkeep.lag
        self.dispatcher, self.seat, self._shared_limits = seated(
            settings, self.scheduler, self.limits, clock=clock, wall=wall, advised=self._advised
        )  # fmt: skip
        self.fellows = fellows_of(self.seat, self.metrics)
        self.doors = Doors()
        self.crowd, self.operators_crowd = Crowd(), Crowd(OPERATORS_MAX)
        self.bound_connections(UNBOUNDED)
        self.fleet = self._fleet(policy)
        self.roster = Roster(self.fleet)
        self.keyring = keyring = settings.keyring(wall)
        store = store_of(settings.store.url) if store is None else store
        self.office = Office(self, store, wall)
        self._spending = Spending(self.limits, store if sums is None else sums)
        names, aliases = frozenset(each.name for each in settings.models), settings.model_by_alias
        self._models = models = ModelTable(
            configured=names, aliases=aliases, cards=self.fleet.cards, lists=self.fleet.lists
        )
        self._users = UserNames(settings.bounds.users_per_tenant, clock, settings.known_users())
        self._asking = Asking(tier_ranks=_ranks(settings), users=self._users,
            service_tiers=settings.tier_by_service_tier)  # fmt: skip
        self._rules = Rules(settings.media_urls)
        self._isolation = Isolation(settings.cache_isolation, self.fleet.takes_cache_salt, keyring)
        places, backgrounds = Places(), Backgrounds()
        self.relay = self._relay(policy, places, backgrounds)
        self._stored = StoredResponses(places=places, fleet=self.fleet, keyring=keyring,
            asking=self._asking, cancelled=backgrounds.cancelled)  # fmt: skip
        self._batching = self._batches()
        self.operators = self._operators()
        operations = Operations(keyring=keyring, models=models, readiness=self._readiness)
        self._listen(operations)
        for more in told_also(self):
            self.metrics.tell_also(more)
        self.metrics.tell_also(self.operators.families)

    def _batches(self) -> "Batching | None":
        if self.settings.batches.files is None:
            return None
        from gateway.batching import Batching  # noqa: PLC0415 - only who has any loads them

        return Batching(
            lambda: self.settings, relay=self.relay, keyring=self.keyring, asking=self._asking,
            doors=self.doors, wall=self.wall,
        )  # fmt: skip

    def _operators(self) -> Operators:
        """The operators' side; what is changed is told to who listens there."""
        self.office.listeners.append(
            lambda changed: self.operators.happenings.publish("store.changed", changed.told())
        )
        return Operators(
            self.settings,
            dispatcher=self.dispatcher,
            relay=self.relay,
            fleet=self.fleet,
            roster=self.roster,
            wall=self.wall,
            registry=self.office,
            made_sha256=self._berth.admin_sha256 if self._berth else None,
            fellows=self.fellows,
        )

    def _listen(self, operations: Operations) -> None:
        """What is served on which listener."""
        listen = self.settings.listen
        public = build_app(operations, lifespan=self._lifespan)
        if self._batching is not None:
            self._batching.serve_from(public)
        office, batching = self.office, self._batching
        progress = None if batching is None else batching.progress
        front: Front
        lobby = Lobby(
            public,
            lambda: self.operators.door(
                public=public,
                metrics=self.siblings.metrics,
                generation=front,
                more=(*routers(office), batches.router(progress, self.clock)),
            ),
        )
        self.furnish: Callable[[], object] = lobby.furnish
        """Makes at once what would else be made for the first operator who comes."""
        is_apart = listen.admin_port is not None
        front = Front(self.relay, self._stored, public if is_apart else lobby, self.doors)
        self.asgi = with_cors(front, listen.cors_origins)
        self.asgi_of_operators: ASGIApp | None = lobby if is_apart else None
        """For the listener of operators, where they have one of their own."""
        self.asgi_of_siblings: ASGIApp = lobby
        """For the other workers of this machine."""
        self.surplus: ASGIApp = front.surplus
        """For connections beyond the bound."""

    def _fleet(self, policy: Policy) -> Fleet:
        return Fleet(
            tell=self.dispatcher.tell,
            clock=self.clock,
            scrape_interval_s=policy.scrape_interval_s,
            stream_buffer_bytes=policy.bounds.stream_buffer_bytes,
            is_hungry=self._is_hungry,
        )

    def _relay(self, policy: Policy, places: Places, backgrounds: Backgrounds) -> Relay:
        return Relay(
            gate=LocalGate(self.dispatcher, taken_back=lambda: self.metrics.recalled("queued")),
            fleet=self.fleet,
            keyring=self.keyring,
            asking=self._asking,
            models=self._models,
            bounds=policy.bounds,
            tiers=self.settings.tier_names,
            keepalive_after_s=self.settings.keepalive_after_s,
            clock=self.clock,
            settled=self._settled,
            prefixes=Prefixes() if is_wanted(policy) else None,
            places=places,
            backgrounds=backgrounds,
            continues=lambda tier: self.scheduler.policy.tiers[tier].continuation,
            continuation_wait_s=lambda: self.scheduler.policy.continuation_wait_s,
            doors=self.doors,
            limiting=Limiting(self.limits, self._expected, self.wall, self._shared_limits),
            rules=self._rules,
            isolation=self._isolation,
        )

    def _expected(self, request: Request) -> tuple[int, int]:
        """Prompt tokens, and output tokens per sequence, that a request will most likely have."""
        predictor = self.scheduler.predictor
        return predictor.prompt_tokens(request), predictor.output_tokens(request)

    def bound_connections(self, possible: int) -> None:
        """So many clients may be connected, where nothing is configured, and no more."""
        self._connections_possible = possible
        self.crowd.most = min(possible, self.settings.bounds.connections or possible)

    def objections(self, settings: Settings) -> tuple[str, ...]:
        """Why it could not go on with these settings, one line each."""
        homeless = homeless_tiers(self.settings, settings)
        try:
            self.roster.plan(settings.addresses(), settings.lookups())
        except OSError as error:
            unreadable = f"replicas: a file with certificates cannot be read: {error}"
            return (*homeless, unreadable)
        return homeless

    def reload(
        self, settings: Settings, keyring: Keyring | None = None, *, homeless_to: str | None = None
    ) -> frozenset[str]:
        """Go on with other settings; nothing that waits or runs is dropped.

        `keyring` are the keys from now on; None: those of the settings. Returns the top-level keys
        that changed. What cannot change while running (`FIXED`) stays as it is, and is told in the
        log. Raises SettingsError, and changes nothing, where a replica's certificates cannot be
        read, or a tier is removed without a word on its requests: not in `moved_to`, nor for all
        such in `homeless_to`.
        """
        old = self.settings
        changed = settings.differs_from(old)
        settings = settings.model_copy(update={name: getattr(old, name) for name in FIXED})
        homeless = homeless_tiers(old, settings)
        if homeless and homeless_to is None:
            raise SettingsError(self.objections(settings))
        try:
            plan = self.roster.plan(settings.addresses(), settings.lookups())
        except OSError:
            raise SettingsError(self.objections(settings)) from None
        policy = settings.policy()
        self.settings = settings
        self.keyring.become(settings.keyring() if keyring is None else keyring)
        self._rule(old, policy, homeless_to or settings.tier_names[-1])
        self.limits.configure(settings.allowances())
        self._rules.configure(settings.media_urls)
        self._isolation.configure(settings.cache_isolation)
        self._models.configure(
            frozenset(model.name for model in settings.models), settings.model_by_alias
        )
        self.roster.follow(plan)
        self.operators.configure(settings)
        self.upkeep.configure()
        self.bound_connections(self._connections_possible)
        if settings.sources is not old.sources:
            set_log_level(settings.log.level)
            self._open_writers()
        for name in sorted(changed & FIXED):
            RELOADS.warning("%s cannot change while running: it stays as it is", name)
        for line in homeless:
            RELOADS.warning("%s: they go to %s", line, homeless_to)
        RELOADS.info("changed: %s", ", ".join(sorted(changed - FIXED)) or "nothing")
        return changed - FIXED

    def _rule(self, old: Settings, policy: Policy, homeless_to: str) -> None:
        """The scheduler and all that counts tiers follow `policy`."""
        settings = self.settings
        ranks = _ranks(settings)
        moved_to = moves(old, settings, homeless_to)
        tier_of = {
            rank: ranks[name if name in ranks else moved_to[name]]
            for rank, name in enumerate(old.tier_names)
        }
        if policy != self.scheduler.policy.shared_like(policy):
            self.dispatcher.tell(PolicyChanged(policy, moved_to))
        self._users.configure(settings.bounds.users_per_tenant, settings.known_users())
        self._asking.configure(ranks, settings.tier_by_service_tier)
        self.relay.configure(
            bounds=policy.bounds,
            tiers=settings.tier_names,
            tier_of=tier_of,
            keepalive_after_s=settings.keepalive_after_s,
            prefixes=Prefixes() if is_wanted(policy) else None,
        )
        self.fleet.configure(
            scrape_interval_s=policy.scrape_interval_s,
            stream_buffer_bytes=policy.bounds.stream_buffer_bytes,
        )

    def _readiness(self) -> Readiness:
        return readiness(
            self.scheduler,
            self.fleet.statuses(),
            self.clock(),
            is_leaving=self.doors.is_leaving,
            store_error=self.office.fault,
            cluster=readiness_of(self.seat),
        )

    @property
    def is_ready(self) -> bool:
        """Whether traffic should come here."""
        return self._readiness().ready

    def announce(self, *, is_replaced: bool = False) -> None:
        """Not ready any more, unless another one took its place; what comes is served all the same.

        Each connection ends with its next answer. Others lead from now on.
        """
        if not is_replaced:
            self.doors.announce()
        if self.seat is not None:
            self.seat.retire()
        self.crowd.is_leaving = self.operators_crowd.is_leaving = True

    def refuse(self) -> None:
        """Refuse what comes; what waits and what runs goes on.

        Whoever gave work to an engine and left cannot come back for it: it is waited for no more.
        """
        self.doors.shut()
        for exchange, task in list(self.relay.open.items()):
            if task is not None and exchange.is_unwatched:
                exchange.end(task, going())

    def inside(self) -> int:
        """Requests that were let in and have not ended."""
        return self.doors.inside

    def close(self) -> None:
        """Refuse what waits and what comes; what runs goes on."""
        self.doors.shut()
        self.dispatcher.tell(Closed())

    def hang_up(self) -> None:
        """End what would go on for ever: operators listen no more."""
        self.operators.close()

    def end(self) -> None:
        """Refuse what waits, end what runs; each client is told."""
        self.close()
        for exchange, task in list(self.relay.open.items()):
            if task is not None:
                exchange.end(task, going())
        self._stored.end(going())

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        await self.office.open()
        self._open_writers()
        self.lag.start()
        async with asyncio.TaskGroup() as tasks:
            self.fleet.run_in(tasks)
            self.roster.run_in(tasks)
            await self.office.start(tasks)
            self.roster.follow(self.roster.plan(self.settings.addresses(), self.settings.lookups()))
            self.operators.drain()
            walk = watch(
                self.relay, tell=self.dispatcher.tell, clock=self.clock,
                client_stall_s=lambda: self.scheduler.policy.bounds.client_stall_s,
                is_stalled=partial(is_stalled, self.scheduler),
                stuck=partial(stuck, self.scheduler),
            )  # fmt: skip
            running = (walk, self.upkeep.run(), self.operators.run())
            watches = [tasks.create_task(each) for each in running]
            seat = None if self.seat is None else tasks.create_task(self.seat.run())
            await self._spending.sync()
            spending = tasks.create_task(self._spending.run())
            if self._batching is not None:
                await self._batching.start(tasks)
            try:
                yield
            finally:
                if self._batching is not None:
                    await self._batching.stop()
                self._spending.stop()
                for each in watches:
                    each.cancel()
                if self.seat is not None and seat is not None:
                    await self.seat.close()
                    seat.cancel()
                await spending  # tells the store the last of it
                await self.office.stop()
                self.roster.close()
                self.fleet.close()
                self.dispatcher.close()
                self.lag.stop()
                self.siblings.close()
                await self.writers.close()

    def _open_writers(self) -> None:
        log, relay = self.settings.log, self.relay
        self.writers.open_log(log.requests)
        relay.tracing = self.writers.open_traces(log.traces, log.traces_share, relay.tracing)

    def _is_hungry(self, name: str) -> bool:
        """Slots still to be learnt, and something there to learn them from."""
        replica = self.scheduler.replicas.get(name)
        return replica is not None and replica.slots is None and bool(replica.ledger.grants)

    def listens_at(self, port: int) -> None:
        """Operators are listened to on this port: the other gateways are told so."""
        told_where(self.seat, self.settings, port, self._berth)

    def _advised(self, advice: ScaleAdvised) -> None:
        self.metrics.advised(advice.models, advice.replicas)
        self.operators.advised(advice)
        models = ", ".join(sorted(advice.models))
        less = f" without {advice.remove}" if advice.remove else ""
        LOGGER.info("advised replicas for %s: %d%s", models, advice.replicas, less)

    def _settled(self, record: SettledRequest) -> None:
        self.metrics.settled(record)
        if self.writers.log is not None:
            self.writers.log.add(record)


def _ranks(settings: Settings) -> dict[str, int]:
    return {name: rank for rank, name in enumerate(settings.tier_names)}
