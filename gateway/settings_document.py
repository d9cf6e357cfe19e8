"""The shape of `fairgate.yaml`: every key with its type, range and default, and nothing else.

It judges one value at a time; what values must mean together is in `settings_rules.py`, and where
a value came from is not known here. docs/configuration.md explains each key and is tested
against this file.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict

from gateway.cluster.address import checked_url as checked_redis_url
from gateway.core.policy import (
    DEFAULT_TIERS,
    Affinity,
    Ageing,
    Bounds,
    Cost,
    CostWeights,
    GpuTime,
    Limiter,
    MigrateRunning,
    Order,
    Policy,
    Scaling,
    WithinUser,
)
from gateway.settings_words import (
    checked_hook,
    checked_upstream,
    checked_url,
    none_of_it,
    parsed_size,
    replica_from_url,
    switched,
    word_for_no_hosts,
    word_for_off,
)
from gateway.tenancy.store.opening import checked_url as checked_store_url

T = TypeVar("T")

SERVICE_TIERS = {"priority": "high", "default": "standard", "flex": "background"}
DEFAULTS = Policy(tiers=DEFAULT_TIERS)


def matching(pattern: str, wanted: str) -> AfterValidator:
    """A text that matches `pattern` as a whole; `wanted` says in words what that is."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(wanted)
        return value

    return AfterValidator(check)


def not_empty(value: T) -> T:
    """A list with something in it."""
    if not value:
        raise ValueError("must have at least one item")
    return value


Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Signal = Annotated[float, Field(ge=-2, le=2)]
Size = Annotated[int, BeforeValidator(parsed_size), Field(ge=1 << 10, le=1 << 40)]
Name = Annotated[
    str,
    matching(r"[^\x00-\x1f\x7f]{1,256}", "must have 1 to 256 characters and no control characters"),
]
TierName = Annotated[
    str,
    matching(r"[a-z][a-z0-9_-]{0,31}", "must be a letter and at most 31 more of a-z, 0-9, _, -"),
]
Sha256 = Annotated[
    str,
    matching(r"[0-9a-fA-F]{64}", "must be 64 hexadecimal digits: the SHA-256 of the whole key"),
    AfterValidator(str.lower),
]
EnvName = Annotated[
    str,
    matching(r"[A-Za-z_][A-Za-z0-9_]*", "must be the name of an environment variable, not the key"),
]
Url = Annotated[str, AfterValidator(checked_url)]
StoreUrl = Annotated[str, AfterValidator(checked_store_url)]
BatchesUrl = Annotated[
    str,
    matching(
        r"sqlite:///[^?]+|rediss?://([^/?@]*@)?[^/?@:]+(:\d+)?(/\d*)?",
        "must be like sqlite:///batches.db, or redis://host:6379/0",
    ),
]
Dns = Annotated[
    str,
    matching(
        r"[A-Za-z0-9._-]+:[1-9]\d{0,4}", "must be a name with its port, like vllm-headless:8000"
    ),
]
Word = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "must have 1 to 64 of A-Z, a-z, 0-9, ., _, -")
]
OperatorName = Annotated[
    str,
    matching(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", "must have 1 to 64 of A-Z, a-z, 0-9, ., _, @, -"),
]
Upstream = Annotated[
    str,
    matching(
        r"(\*\.)?[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(/\d{1,3})?",
        "must be a name, *.suffix, an address, or a network like 10.0.0.0/8",
    ),
    AfterValidator(checked_upstream),
]
Switch = Annotated[bool, BeforeValidator(switched)]
Origin = Annotated[
    str,
    matching(
        r"\*|https?://[^/?#@\s]+",
        "must be a scheme and a host, like https://chat.example.org, or *",
    ),
]

MediaHost = Annotated[
    str,
    matching(
        r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*(:[1-9]\d{0,4})?",
        "must be a host in small letters, like images.example.org, *.example.org or "
        "images.example.org:8443",
    ),
]


class Section(BaseModel):
    """A mapping of the document: frozen, unknown keys refused, `"8080"` is no number."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class ListenSection(Section):
    """Where the gateway listens."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    admin_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    cors_origins: Annotated[tuple[Origin, ...], Strict(strict=False)] = ()


class ReplicaSection(Section):
    """One engine by its URL, or all addresses of a name."""

    url: Url | None = None
    dns: Dns | None = None
    every_s: Annotated[float, Field(ge=1, le=3600)] = 5.0
    engine: Literal["vllm", "sglang", "tgi", "llamacpp"] | None = None
    max_num_seqs: Count | None = None
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    weight: Positive = 1.0
    api_key_env: EnvName | None = None
    ca_file: Annotated[Path, Strict(strict=False)] | None = None


Replicas = Annotated[
    tuple[Annotated[ReplicaSection, BeforeValidator(replica_from_url)], ...], Strict(strict=False)
]


class PriceSection(Section):
    """What a million tokens of one model cost."""

    input: NotNegative
    output: NotNegative


class ModelSection(Section):
    """A model clients may ask for and the replicas that serve it under the same name."""

    name: Name
    aliases: Annotated[tuple[Name, ...], Strict(strict=False)] = ()
    price: PriceSection | None = None
    replicas: Annotated[Replicas, AfterValidator(not_empty)]


class RoomSection(Section):
    """Most that may wait at once of whoever it is given to."""

    requests: Count | None = None
    bytes: Size | None = None
    tokens: Count | None = None


class TierSection(Section):
    """One service class; None is filled in by rank, see `Settings.policy`."""

    name: TierName
    queue_limit: Annotated[int, Field(ge=0, le=1000)] | None = None
    tpot_limit_ms: Positive = 150.0
    prefill_limit_s: Positive | None = None
    patience_s: Annotated[float, Field(gt=0, le=86400)] = 300.0
    min_share: Annotated[float, Field(ge=0, lt=1)] | None = None
    weight: Positive = 1.0
    room: RoomSection = RoomSection()
    ttft_target_ms: Positive | None = None
    tpot_target_ms: Positive | None = None
    continuation: Switch = False
    preemptible: Switch = False


class WeightsSection(Section):
    """What one token of each kind costs."""

    prompt: Positive = CostWeights().prompt
    output: Positive = CostWeights().output
    cached: NotNegative = CostWeights().cached


class GpuTimeSection(Section):
    """Seconds of one GPU that one token of each kind takes."""

    prompt_s: Positive = GpuTime().prompt_s
    output_s: Positive = GpuTime().output_s
    kv_s: NotNegative = GpuTime().kv_s


class AgeingSection(Section):
    """Promotion of requests that waited long."""

    after_s: Positive | None = Ageing().after_s
    per_s: Positive = Ageing().per_s


class AffinitySection(Section):
    """How much freer another replica must be than the one that has the state."""

    prefix: NotNegative = Affinity().prefix
    session: NotNegative = Affinity().session
    adapter: NotNegative = Affinity().adapter


class SchedulingSection(Section):
    """Who is next, when it may be released, and where to."""

    order: Order = DEFAULTS.order
    within_user: WithinUser = DEFAULTS.within_user
    cost: Cost = DEFAULTS.cost
    weights: WeightsSection = WeightsSection()
    gpu_time: GpuTimeSection = GpuTimeSection()
    ageing: AgeingSection = AgeingSection()
    headroom_max: Annotated[float, Field(ge=0, le=0.9)] = DEFAULTS.headroom_max
    headroom_decay: NotNegative | None = DEFAULTS.headroom_decay
    lend: bool = DEFAULTS.lend
    hold_s: NotNegative = DEFAULTS.hold_s
    prefill_limit_s: Positive = 1.0
    min_inflight: Count = DEFAULTS.min_inflight
    limiter: Limiter = DEFAULTS.limiter
    inflight_limit: Count | None = DEFAULTS.inflight_limit
    reserve_after_s: NotNegative = DEFAULTS.reserve_after_s
    warm_up_s: NotNegative = DEFAULTS.warm_up_s
    affinity: AffinitySection = AffinitySection()
    recall: bool = DEFAULTS.recall
    recall_gap: NotNegative = DEFAULTS.recall_gap
    migrate_running: Annotated[MigrateRunning, BeforeValidator(word_for_off)] = (
        DEFAULTS.migrate_running
    )
    scrape_interval_s: Annotated[float, Field(ge=0.05, le=60)] = DEFAULTS.scrape_interval_s


class ScalingSection(Section):
    """When to advise another number of replicas; None is the default threshold."""

    min: Annotated[int, Field(ge=0, le=10_000)] = Scaling().min
    max: Annotated[int, Field(ge=1, le=10_000)] = Scaling().max
    below: Signal | None = None
    above: Signal | None = None
    hold_s: NotNegative = Scaling().hold_s
    cooldown_s: NotNegative = Scaling().cooldown_s


class WebhookSection(Section):
    """Who is told of each change of the advice."""

    url: Annotated[str, AfterValidator(checked_hook)] | None = None
    secret_env: EnvName | None = None
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    attempts: Annotated[int, Field(ge=1, le=10)] = 5


class AutoscaleSection(Section):
    """What is done about the advice. Not over REST: it names an address that is sent to."""

    drain: bool = False
    drain_after_s: Annotated[float, Field(ge=0, le=86400)] = 300.0
    min: Annotated[int, Field(ge=1, le=10_000)] = 1
    sleep: bool = False
    webhook: WebhookSection = WebhookSection()


class BoundsSection(Section):
    """Every limit on what may accumulate."""

    waiting_per_user: Count = Bounds().waiting_per_user
    waiting: Count = Bounds().waiting
    waiting_bytes: Size = Bounds().waiting_bytes
    waiting_tokens: Count | None = Bounds().waiting_tokens
    waiting_bytes_per_user: Size | None = Bounds().waiting_bytes_per_user
    waiting_tokens_per_user: Count | None = Bounds().waiting_tokens_per_user
    body: Size = Bounds().body_bytes
    bodies: Size = Bounds().bodies_bytes
    stream_buffer: Size = Bounds().stream_buffer_bytes
    stream_buffers: Size = Bounds().stream_buffers_bytes
    memory: Size | None = None
    loop_lag_s: NotNegative = 0.5
    users_per_tenant: Count = Bounds().users_per_tenant
    max_sequences: Count = Bounds().max_sequences
    predictions: Count = Bounds().predictions
    prefixes: Count = Bounds().prefixes
    sessions: Count = Bounds().sessions
    connections: Count | None = None
    retry_after_s_max: Positive = Bounds().retry_after_s_max
    client_stall_s: Positive = Bounds().client_stall_s


class RetriesSection(Section):
    """Trying another replica, before the first byte and after it."""

    attempts: Annotated[int, Field(ge=1, le=16)] = Bounds().attempts
    continuation_wait_s: NotNegative = DEFAULTS.continuation_wait_s


class BudgetSection(Section):
    """Tokens that may be used in each day or month."""

    tokens: Annotated[int, Field(ge=1, le=10**15)]
    per: Literal["day", "month"] = "month"


class LimitsSection(Section):
    """How much may be used; None: as much as there is."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrent: Count | None = None
    budget: BudgetSection | None = None


class UserSection(Section):
    """One user of a tenant."""

    weight: Positive = 1.0
    limits: LimitsSection = LimitsSection()


class TenantSection(Section):
    """An organisation or team."""

    name: Name
    weight: Positive = 1.0
    room: RoomSection = RoomSection()
    limits: LimitsSection = LimitsSection()
    users: dict[Name, UserSection] = {}


class KeySection(Section):
    """One API key, known by its hash only."""

    key_sha256: Sha256
    tenant: Name
    user: Name | None = None
    tier: TierName | None = None
    max_tier: TierName | None = None
    models: Annotated[tuple[Name, ...], Strict(strict=False), AfterValidator(not_empty)] = ("*",)
    speaks_for_users: bool = False
    allows_chat_template: bool = False
    limits: LimitsSection = LimitsSection()


class AdminKeySection(Section):
    """One operator's key, known by its hash only."""

    name: OperatorName
    key_sha256: Sha256


class AdminSection(Section):
    """Who may operate the gateway, and where the replicas may be that they add."""

    key_sha256: Sha256 | None = None
    keys: Annotated[tuple[AdminKeySection, ...], Strict(strict=False)] = ()
    upstreams: Annotated[tuple[Upstream, ...], Strict(strict=False)] = ()


class StoreSection(Section):
    """What survives the process: what is changed while it runs, and what was spent."""

    url: StoreUrl | None = "sqlite:///fairgate.db"


class BatchesSection(Section):
    """Files of requests that run when there is room; nothing of it without `files`."""

    files: Annotated[str, Field(min_length=1)] | None = None
    store: BatchesUrl = "sqlite:///fairgate-batches.db"
    tier: TierName | None = None
    in_flight: Annotated[int, Field(ge=1, le=10_000)] = 512
    attempts: Annotated[int, Field(ge=1, le=16)] = 3
    file: Size = 200 << 20
    lines: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    files_per_tenant: Count = 1_000
    bytes_per_tenant: Size = 10 << 30
    open_per_tenant: Count = 50
    keep_s: Annotated[float, Field(ge=3_600, le=31_536_000)] = 2_592_000.0
    lease_s: Annotated[float, Field(ge=0.5, le=600)] = 10.0


class RedisSection(Section):
    """What several gateways share, so that they act as one."""

    url: Annotated[str, AfterValidator(checked_redis_url)] | None = None
    prefix: Word = "fairgate"
    name: Word | None = None


class ShutdownSection(Section):
    """How the gateway ends."""

    lag_s: Annotated[float, Field(ge=0, le=3600)] = 5.0
    limit_s: Annotated[float, Field(ge=0, le=86400)] = 600.0


class LogSection(Section):
    """What the gateway writes about itself, and about each request."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: Annotated[str, Field(min_length=1)] | None = None
    traces: Url | None = None
    traces_share: Annotated[float, Field(ge=0, le=1)] = 1.0


class Document(Section):
    """The whole file. All of it may be left out but the replicas."""

    mode: Annotated[Literal["fair", "fifo"], Field(alias="policy")] = "fair"
    insecure_no_auth: bool = False
    keepalive_after_s: NotNegative = 5.0
    media_urls: Annotated[
        tuple[MediaHost, ...], Strict(strict=False), BeforeValidator(word_for_no_hosts)
    ] = ()
    cache_isolation: Literal["none", "tenant", "user"] = "tenant"
    listen: ListenSection = ListenSection()
    replicas: Replicas = ()
    models: Annotated[tuple[ModelSection, ...], Strict(strict=False)] = ()
    tiers: Annotated[tuple[TierSection, ...], Strict(strict=False)] = ()
    service_tiers: dict[Name, TierName] | None = None
    moved_to: dict[TierName, TierName] = {}
    scheduling: SchedulingSection = SchedulingSection()
    bounds: BoundsSection = BoundsSection()
    retries: RetriesSection = RetriesSection()
    scaling: ScalingSection = ScalingSection()
    autoscale: AutoscaleSection = AutoscaleSection()
    store: StoreSection = StoreSection()
    batches: BatchesSection = BatchesSection()
    redis: Annotated[RedisSection, BeforeValidator(none_of_it)] = RedisSection()
    shutdown: ShutdownSection = ShutdownSection()
    log: LogSection = LogSection()
    tenants: Annotated[tuple[TenantSection, ...], Strict(strict=False)] = ()
    keys: Annotated[tuple[KeySection, ...], Strict(strict=False)] = ()
    admin: AdminSection = AdminSection()


def section_in(annotation: object) -> type[Section] | None:
    """The section that a field of this type holds, alone or in a list or mapping; else None."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    inner = (section_in(argument) for argument in get_args(annotation))
    return next((found for found in inner if found is not None), None)


def keys_at(place: Iterable[str | int]) -> tuple[str, ...]:
    """The keys of the section at `place` in the document."""
    section: type[Section] = Document
    for part in place:
        field = section.model_fields.get(str(part))
        # An index, or a name in a mapping of sections, leads no deeper.
        inner = section_in(field.annotation) if field else None
        section = inner or section
    return tuple(field.alias or name for name, field in section.model_fields.items())
