"""Settings as the rest of the product uses them: sections as in the file, and what they become.

It hands the scheduler its `Policy`, the edge its keys and the upstream its addresses; where
settings come from, and whether they are right, is not known here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import time
from types import MappingProxyType

from pydantic import PrivateAttr

from gateway.core.policy import (
    DEFAULT_TIERS,
    Affinity,
    Ageing,
    Bounds,
    CostWeights,
    GpuTime,
    Policy,
    Price,
    Room,
    Scaling,
    Tenant,
    Tier,
)
from gateway.settings_document import (
    SERVICE_TIERS,
    Document,
    KeySection,
    LimitsSection,
    ReplicaSection,
    RoomSection,
    TierSection,
)
from gateway.settings_rules import ANY_MODEL, default_tier, is_loopback, scaling_thresholds
from gateway.settings_sources import Sources
from gateway.tenancy.keys import OPEN_TENANT, OPEN_USER, Keyring, Principal, id_of
from gateway.tenancy.limits import Allowance, Owner
from gateway.upstream.replicas import ReplicaAddress, replica_name

FLOOR = 0.02
"""Default floor of each tier below the first."""
ONLY_TIER_QUEUE_LIMIT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsLookup:
    """A name whose addresses are replicas; one that vanishes is to be drained."""

    host: str
    port: int
    every_s: float
    found: Callable[[str], ReplicaAddress] = field(repr=False)
    """The replica at a URL made of one of the addresses."""


class Settings(Document):
    """All that was configured; sections are attributes, named as in the file."""

    _api_keys: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _sources: Sources = PrivateAttr(default_factory=Sources)

    @classmethod
    def of(
        cls, values: Mapping[str, object], *, api_keys: Mapping[str, str], sources: Sources
    ) -> "Settings":
        """The settings `values`, known to be valid; `api_keys` by their variable's name."""
        settings = cls.model_validate(values)
        settings._api_keys = dict(api_keys)
        settings._sources = sources
        return settings

    @property
    def sources(self) -> Sources:
        """What they were made of, less what was decided at run time."""
        return self._sources

    @property
    def tier_names(self) -> tuple[str, ...]:
        """The tiers by rank, 0 first."""
        return tuple(tier.name for tier in self._tiers())

    @property
    def default_tier(self) -> str:
        """The tier of whoever has none of its own."""
        return default_tier(self.tier_names, self.service_tiers)

    @property
    def tier_by_service_tier(self) -> Mapping[str, str]:
        """OpenAI's `service_tier` -> our tier. `auto` and unknown words: the key's own tier."""
        mapping = SERVICE_TIERS if self.service_tiers is None else self.service_tiers
        known = self.tier_names
        return MappingProxyType({word: tier for word, tier in mapping.items() if tier in known})

    @property
    def model_by_alias(self) -> Mapping[str, str]:
        """Alias -> name of a configured model."""
        pairs = {alias: model.name for model in self.models for alias in model.aliases}
        return MappingProxyType(pairs)

    @property
    def is_open(self) -> bool:
        """Whether no key is configured: users are told apart by what they say they are."""
        return not self.keys and (self.is_local or self.insecure_no_auth)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return is_loopback(self.listen.host)

    def differs_from(self, other: "Settings") -> frozenset[str]:
        """The top-level keys that are not the same."""
        return frozenset(
            field.alias or name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != getattr(other, name)
        )

    def known_users(self) -> frozenset[tuple[str, str]]:
        """All (tenant, user) pairs that the file names."""
        of_tenants = {(tenant.name, user) for tenant in self.tenants for user in tenant.users}
        return frozenset(of_tenants | {(key.tenant, key.user) for key in self.keys if key.user})

    def keyring(self, wall: Callable[[], float] = time) -> Keyring:
        """Who may call. Without any key everybody may: in any tier, and in anybody's name.

        `wall` tells seconds since 1970, to keys that expire.
        """
        if not self.is_open:
            return Keyring({key.key_sha256: self.principal(key) for key in self.keys}, None, wall)
        opened = Principal(
            tenant=OPEN_TENANT,
            user=OPEN_USER,
            tier=self.tier_names.index(self.default_tier),
            max_tier=0,
            speaks_for_users=True,
        )
        return Keyring({}, opened, wall)

    def policy(self) -> Policy:
        """What the scheduler is told."""
        scheduling = self.scheduling
        return Policy(
            tiers=self._tiers(),
            tenants=self._tenants(),
            order=scheduling.order,
            within_user=scheduling.within_user,
            cost=scheduling.cost,
            weights=CostWeights(**scheduling.weights.model_dump()),
            gpu_time=GpuTime(**scheduling.gpu_time.model_dump()),
            prices={
                model.name: Price(input=model.price.input, output=model.price.output)
                for model in self.models
                if model.price is not None
            },
            ageing=Ageing(**scheduling.ageing.model_dump()),
            headroom_max=scheduling.headroom_max,
            headroom_decay=scheduling.headroom_decay,
            lend=scheduling.lend,
            hold_s=scheduling.hold_s,
            min_inflight=scheduling.min_inflight,
            limiter=scheduling.limiter,
            inflight_limit=scheduling.inflight_limit,
            reserve_after_s=scheduling.reserve_after_s,
            warm_up_s=scheduling.warm_up_s,
            affinity=Affinity(**scheduling.affinity.model_dump()),
            recall=scheduling.recall,
            recall_gap=scheduling.recall_gap,
            migrate_running=scheduling.migrate_running,
            continuation_wait_s=self.retries.continuation_wait_s,
            scaling=self._scaling(),
            scrape_interval_s=scheduling.scrape_interval_s,
            bounds=self._bounds(),
            release_at_once=self.mode == "fifo",
        )

    def allowances(self) -> dict[Owner, Allowance]:
        """The limits of all tenants, users and keys that have any."""
        sections: dict[Owner, LimitsSection] = {}
        for tenant in self.tenants:
            sections[Owner("tenant", tenant.name)] = tenant.limits
            for name, user in tenant.users.items():
                sections[Owner("user", tenant.name, name)] = user.limits
        for key in self.keys:
            sections[Owner("key", id_of(key.key_sha256))] = key.limits
        none = LimitsSection()
        return {owner: allowance_of(limits) for owner, limits in sections.items() if limits != none}

    def addresses(self) -> tuple[ReplicaAddress, ...]:
        """The replicas with a URL of their own; one address for all models it is listed under."""
        return tuple(
            self._address(replica.url, replica, models)
            for replica, models in self._replicas()
            if replica.url is not None
        )

    def lookups(self) -> tuple[DnsLookup, ...]:
        """The names to look up again and again, each for a changing set of replicas."""
        return tuple(
            DnsLookup(
                host=replica.dns.rpartition(":")[0],
                port=int(replica.dns.rpartition(":")[2]),
                every_s=replica.every_s,
                found=partial(self._address, replica=replica, models=models),
            )
            for replica, models in self._replicas()
            if replica.dns is not None
        )

    def principal(self, key: KeySection, key_id: str | None = None) -> Principal:
        """A key with its tiers filled in; a model that it may use it may use by all its names.

        `key_id`: None for a key of the configuration, whose id comes from its hash.
        """
        own = key.tier or self.default_tier
        names = set(key.models)
        for model in self.models:
            if names & {model.name, *model.aliases}:
                names |= {model.name, *model.aliases}
        return Principal(
            tenant=key.tenant,
            user=key.user or OPEN_USER,
            tier=self.tier_names.index(own),
            max_tier=self.tier_names.index(key.max_tier or own),
            models=None if ANY_MODEL in names else frozenset(names),
            speaks_for_users=key.speaks_for_users,
            allows_chat_template=key.allows_chat_template,
            key_id=id_of(key.key_sha256) if key_id is None else key_id,
        )

    def _replicas(self) -> list[tuple[ReplicaSection, frozenset[str] | None]]:
        """Each replica once, with all models it is listed under; None: those it tells itself."""
        found: dict[ReplicaSection, frozenset[str] | None] = dict.fromkeys(self.replicas)
        for model in self.models:
            for replica in model.replicas:
                known = found.setdefault(replica, frozenset())
                found[replica] = None if known is None else known | {model.name}
        return list(found.items())

    def _address(
        self, url: str, replica: ReplicaSection, models: frozenset[str] | None
    ) -> ReplicaAddress:
        return ReplicaAddress(
            name=replica_name(url),
            url=url,
            models=models,
            engine=replica.engine,
            max_num_seqs=replica.max_num_seqs,
            scheduling_policy=replica.scheduling_policy,
            weight=replica.weight,
            api_key=self._api_keys[replica.api_key_env] if replica.api_key_env else None,
            ca_file=str(replica.ca_file) if replica.ca_file else None,
        )

    def webhook_secret(self) -> bytes:
        """What messages of the webhook are signed with; empty where there is none."""
        name = self.autoscale.webhook.secret_env
        return b"" if name is None else self._api_keys[name].encode()

    def _tiers(self) -> tuple[Tier, ...]:
        """The tiers with what was left out filled in by rank."""
        last = len(self.tiers) - 1
        return (
            DEFAULT_TIERS
            if last < 0
            else tuple(self._tier(tier, rank, last) for rank, tier in enumerate(self.tiers))
        )

    def _tier(self, tier: TierSection, rank: int, last: int) -> Tier:
        """A tier above the last may queue one more than the one below it; the last nothing."""
        queue_limit = ONLY_TIER_QUEUE_LIMIT if last == 0 else (last + 1 - rank) * (rank < last)
        return Tier(
            name=tier.name,
            queue_limit=queue_limit if tier.queue_limit is None else tier.queue_limit,
            tpot_limit_ms=tier.tpot_limit_ms,
            prefill_limit_s=tier.prefill_limit_s or self.scheduling.prefill_limit_s,
            patience_s=tier.patience_s,
            min_share=(FLOOR if rank else 0.0) if tier.min_share is None else tier.min_share,
            weight=tier.weight,
            room=_room(tier.room),
            ttft_target_ms=tier.ttft_target_ms,
            tpot_target_ms=tier.tpot_target_ms,
            continuation=tier.continuation,
            preemptible=tier.preemptible,
        )

    def _tenants(self) -> dict[str, Tenant]:
        return {
            tenant.name: Tenant(
                weight=tenant.weight,
                room=_room(tenant.room),
                users={name: user.weight for name, user in tenant.users.items()},
            )
            for tenant in self.tenants
        }

    def _scaling(self) -> Scaling:
        scaling = self.scaling
        below, above = scaling_thresholds(scaling)
        return Scaling(
            min=scaling.min,
            max=scaling.max,
            below=below,
            above=above,
            hold_s=scaling.hold_s,
            cooldown_s=scaling.cooldown_s,
        )

    def _bounds(self) -> Bounds:
        bounds = self.bounds
        return Bounds(
            waiting_per_user=bounds.waiting_per_user,
            waiting=bounds.waiting,
            waiting_bytes=bounds.waiting_bytes,
            waiting_tokens=bounds.waiting_tokens,
            waiting_bytes_per_user=bounds.waiting_bytes_per_user,
            waiting_tokens_per_user=bounds.waiting_tokens_per_user,
            body_bytes=bounds.body,
            bodies_bytes=bounds.bodies,
            stream_buffer_bytes=bounds.stream_buffer,
            stream_buffers_bytes=bounds.stream_buffers,
            users_per_tenant=bounds.users_per_tenant,
            max_sequences=bounds.max_sequences,
            predictions=bounds.predictions,
            prefixes=bounds.prefixes,
            sessions=bounds.sessions,
            retry_after_s_max=bounds.retry_after_s_max,
            attempts=self.retries.attempts,
            client_stall_s=bounds.client_stall_s,
        )


def allowance_of(limits: LimitsSection) -> Allowance:
    """The limits of one tenant, user or key, as they are enforced."""
    budget = limits.budget
    return Allowance(
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        concurrent=limits.concurrent,
        budget_tokens=None if budget is None else budget.tokens,
        budget_per="month" if budget is None else budget.per,
    )


def _room(room: RoomSection) -> Room:
    return Room(requests=room.requests, body_bytes=room.bytes, tokens=room.tokens)
