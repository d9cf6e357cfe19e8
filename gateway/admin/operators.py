"""The operators' side of one gateway as a whole: who gets in, what is told, what is watched.

It follows the settings; which listener it stands behind is decided by whoever serves it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from secrets import token_hex, token_urlsafe

from fastapi import APIRouter, FastAPI
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp

from gateway.admin import routes
from gateway.admin.advice_webhook import AdviceWebhook, Target
from gateway.admin.autoscaler import Autoscaler
from gateway.admin.desk import Desk
from gateway.admin.door import Door
from gateway.admin.engine_sleep import EngineSleep
from gateway.admin.events import Happenings
from gateway.admin.fellows import Fellows, NoFellows
from gateway.admin.guard import ADMIN, AdminKey, Guard
from gateway.admin.history import History
from gateway.admin.registry import Registry, drained_names, resting_names
from gateway.admin.replica_watch import ReplicaWatch
from gateway.admin.scale import advice_view
from gateway.admin.siblings import Headers
from gateway.admin.upstreams import Upstreams
from gateway.api.relay import Relay
from gateway.core.messages import DrainAsked, ScaleAdvised
from gateway.runtime.dispatcher import Dispatcher
from gateway.settings import Settings
from gateway.tenancy.keys import key_hash
from gateway.upstream.fleet import Fleet
from gateway.upstream.roster import Roster

EPOCH_BYTES = 4
KEY_BYTES = 24


class Operators:
    """Who gets in, what is told, what is watched."""

    def __init__(
        self,
        settings: Settings,
        *,
        dispatcher: Dispatcher,
        relay: Relay,
        fleet: Fleet,
        roster: Roster,
        wall: Callable[[], float],
        registry: Registry,
        made_sha256: str | None = None,
        fellows: Fellows | None = None,
    ) -> None:
        """`made_sha256`: hash of a key that was made for this run by whoever started it.

        `fellows`: the other gateways of the cluster; None: there is none.
        """
        self._settings = settings
        made = f"fgadm-{token_urlsafe(KEY_BYTES)}"
        self._made_sha256 = made_sha256 or key_hash(made.encode("ascii"))
        self.made_key = None if _is_configured(settings) else made
        """An admin key that was made for this run; None where one is configured."""
        self._tell = dispatcher.tell
        self._fleet = fleet
        self._scheduler = dispatcher.scheduler
        self._clock = dispatcher.clock
        self._drained: frozenset[str] = frozenset()
        self._resting: frozenset[str] = frozenset()
        self.happenings = Happenings(token_hex(EPOCH_BYTES), wall)
        self._watch = ReplicaWatch(self.happenings)
        self._history = History(dispatcher.scheduler)
        self._upstreams = Upstreams(settings.admin.upstreams)
        self._guard = Guard(
            self._keys(), is_open=self._needs_no_key(), clock=dispatcher.clock
        )  # fmt: skip
        self.desk = Desk(
            scheduler=dispatcher.scheduler,
            tell=dispatcher.tell,
            place_of=dispatcher.place_of,
            relay=relay,
            fleet=fleet,
            roster=roster,
            registry=registry,
            settings=lambda: self._settings,
            happenings=self.happenings,
            history=self._history,
            upstreams=self._upstreams,
            fellows=fellows or NoFellows(),
            clock=dispatcher.clock,
            wall=wall,
        )
        self._autoscaler = Autoscaler(
            self.desk, resting=lambda: self._resting, sleeping=EngineSleep()
        )
        self._webhook = AdviceWebhook(wall=wall)
        self._webhook.target = _target(settings)

    async def run(self) -> None:
        """Follow the advice, and tell of it, where that is switched on; until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._autoscaler.run())
            tasks.create_task(self._webhook.run())

    def door(
        self,
        *,
        public: FastAPI,
        metrics: Callable[[Headers], Awaitable[tuple[bytes, str]]],
        generation: ASGIApp,
        more: Iterable[APIRouter] = (),
    ) -> Door:
        """The way in; see `routes.door`."""
        return routes.door(
            self.desk,
            public=public,
            metrics=metrics,
            guard=self._guard,
            generation=generation,
            more=more,
        )

    def configure(self, settings: Settings) -> None:
        """Follow other settings, and what the registry says of drained replicas."""
        self._settings = settings
        self._guard.configure(self._keys(), is_open=self._needs_no_key())
        self._upstreams.configure(settings.admin.upstreams)
        self._webhook.target = _target(settings)
        self.drain()

    def drain(self) -> None:
        """Have the replicas drained that an operator drained, and no others of theirs.

        To be called once the replicas of the start are there, and after each change.
        """
        records = self.desk.registry.contents.records
        wanted, self._resting = drained_names(records), resting_names(records)
        for name in sorted(wanted - self._drained):
            self._tell(DrainAsked(name))
        for name in sorted(self._drained - wanted):
            # One that is no longer wanted is drained for that, and stays so.
            if self._fleet.is_wanted(name):
                self._tell(DrainAsked(name, draining=False))
        self._drained = wanted

    def look(self) -> None:
        """Tell listeners what became of the replicas, and note who waits and runs; each second."""
        now = self._clock()
        self._watch.look(self._fleet.statuses(), self._scheduler.replicas, now)
        self._history.look(now, self.desk.wall())

    def advised(self, advice: ScaleAdvised) -> None:
        """Tell listeners how many replicas there should be; where we act for them, the webhook."""
        self.happenings.publish(
            "scale.advised",
            {
                "models": sorted(advice.models),
                "replicas": advice.replicas,
                "remove": advice.remove,
            },
        )
        first = min(advice.models, default="")
        pool = self._scheduler.pool_by_model.get(first)
        if pool is not None and self.desk.fellows.acts_for(first):
            view = advice_view(pool, self._clock())
            news = view.model_dump(include={"models", "usable", "signal", "waiting", "min", "max"})
            news |= {"replicas": advice.replicas, "remove": advice.remove}
            self._webhook.tell(first, advice.replicas, news)

    def families(self) -> Iterator[Metric]:
        """What `/metrics` tells of it."""
        deeds = CounterMetricFamily(
            "fairgate_autoscale_deeds",
            "Replicas drained, used again, put to sleep and woken, and what failed of that.",
            labels=("deed", "outcome"),
        )
        for labels, count in self._autoscaler.figures():
            deeds.add_metric(labels, count)
        told = CounterMetricFamily(
            "fairgate_scale_webhook_messages",
            "Changes of the advice for the webhook, by what became of them.",
            labels=("outcome",),
        )
        for outcome, number in self._webhook.counts.items():
            told.add_metric((outcome,), number)
        yield from (deeds, told)

    def close(self) -> None:
        """Whoever listens is told that this is the end."""
        self.happenings.close()

    def _keys(self) -> tuple[AdminKey, ...]:
        admin = self._settings.admin
        keys = [AdminKey(key.name, key.key_sha256) for key in admin.keys]
        if admin.key_sha256 is not None:
            keys.append(AdminKey(ADMIN, admin.key_sha256))
        return tuple(keys) or (AdminKey(ADMIN, self._made_sha256),)

    def _needs_no_key(self) -> bool:
        return self._settings.is_local and not _is_configured(self._settings)


def _target(settings: Settings) -> Target | None:
    hook = settings.autoscale.webhook
    if hook.url is None:
        return None
    return Target(
        url=hook.url,
        secret=settings.webhook_secret(),
        timeout_s=hook.timeout_s,
        attempts=hook.attempts,
    )


def _is_configured(settings: Settings) -> bool:
    return settings.admin.key_sha256 is not None or bool(settings.admin.keys)
