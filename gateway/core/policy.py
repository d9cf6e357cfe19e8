"""What the operator decides: tiers, weights, gates and bounds, as plain frozen values.

The settings layer builds a `Policy` from YAML and environment; the scheduler only reads it.
Every bound of the product has its name here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Cost = Literal["requests", "tokens", "gpu_seconds", "price"]
Order = Literal["strict", "weighted"]
WithinUser = Literal["fcfs", "shortest", "deadline", "prefix"]
Limiter = Literal["static", "adaptive"]
Allowance = Literal["bridge", "constant"]
MigrateRunning = Literal["off", "drain", "balance"]

HEADROOM_DECAY_SPAN = 2.5
"""Default lambda is this over (K - 1): the last tier reserves e^-2.5 of what the first does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Most that may wait at once of whoever it is given to; None: as much as all may together."""

    requests: int | None = None
    body_bytes: int | None = None
    tokens: int | None = None
    """Prompt tokens and predicted output tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One service class; its rank is its position in `Policy.tiers`, 0 is served first."""

    name: str
    queue_limit: int = 2
    """Most requests this tier may leave waiting inside one engine; 0 = only into a free slot."""
    tpot_limit_ms: float = 150.0
    """A replica slower than this per output token takes no more of this tier."""
    prefill_limit_s: float = 1.0
    """Most unstarted prompt work, in seconds of prefill, on a replica this tier may join."""
    patience_s: float = 300.0
    """How long a request may wait for a grant before it is refused."""
    min_share: float = 0.0
    """Floor: this share of the released cost goes to the tier whatever the tiers above want."""
    weight: float = 1.0
    """Share among the tiers that wait, where `Policy.order` is "weighted"; unused where strict."""
    room: Room = field(default_factory=Room)
    ttft_target_ms: float | None = None
    tpot_target_ms: float | None = None
    continuation: bool = False
    """Whether a stream whose replica fails after its first byte goes on on another one."""
    preemptible: bool = False
    """Whether a plain request that runs may be begun anew later, where its slot is wanted above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """An organisation or team and the weights of those of its users that differ from 1."""

    weight: float = 1.0
    room: Room = field(default_factory=Room)
    users: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """Price of one token by kind; prompt 1 and output 2 as in VTC (arXiv 2401.00588)."""

    prompt: float = 1.0
    output: float = 2.0
    cached: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTime:
    """Seconds of one GPU that a token is taken to cost, for `cost: gpu_seconds`.

    Linear in the tokens: a decode token pays its share of the step and reads the KV of its whole
    context. The defaults are Llama-2-7B on an A100 at a batch of 64 (Vidur's profiles, MIT).
    """

    prompt_s: float = 6.5e-5
    output_s: float = 1.4e-4
    kv_s: float = 3.2e-7
    """For each token of context that each output token attends to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a million tokens of one model cost, in any currency, for `cost: price`."""

    input: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ageing:
    """Promotion of single requests that waited long, at a bounded rate."""

    after_s: float | None = None
    """Waiting longer than this makes a request *aged*; None: never."""
    per_s: float = 1.0
    """Most promotions a second in one pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """How much freer another replica must be to be preferred, as a share; 0 switches it off.

    1.0: the replica that holds the whole prefix (or the session, or the adapter) is taken unless
    another one is more than twice as free.
    """

    prefix: float = 1.0
    session: float = 1.0
    adapter: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """When to advise another number of replicas; thresholds are shares of the fleet's capacity.

    The signal is (free capacity - predicted work waiting at the gateway) / capacity: 1 is an idle
    fleet, 0 a full one with nothing waiting, below 0 a backlog.
    """

    min: int = 0
    max: int = 8
    below: float = -0.1
    above: float = 0.6
    hold_s: float = 10.0
    """The signal must stay beyond a threshold for this long."""
    cooldown_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Every limit on what may accumulate. Counts are requests unless the name says otherwise."""

    waiting_per_user: int = 1_000
    waiting: int = 10_000
    waiting_bytes: int = 1 << 30
    waiting_tokens: int | None = None
    waiting_bytes_per_user: int | None = None
    waiting_tokens_per_user: int | None = None
    body_bytes: int = 32 << 20
    bodies_bytes: int = 2 << 30
    """Of all bodies that are here at once: those that come, wait and run."""
    stream_buffer_bytes: int = 1 << 20
    stream_buffers_bytes: int = 1 << 30
    """Of all answers together: where many run, each may hold less than `stream_buffer_bytes`."""
    users_per_tenant: int = 1_000
    max_sequences: int = 128
    predictions: int = 10_000
    """Most (model, tenant, user, route) combinations whose output length is remembered."""
    prefixes: int = 8_192
    """Most leading blocks of prompts remembered for one replica: half a million tokens."""
    sessions: int = 10_000
    """Most sessions whose replica is remembered, in one pool."""
    retry_after_s_max: float = 30.0
    attempts: int = 3
    """Most replicas one request is tried on, before its first byte and after it."""
    client_stall_s: float = 60.0
    """A client that reads nothing for this long while its buffer is full is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All that the scheduler may be told. Immutable; a change arrives as a new `Policy`."""

    tiers: tuple[Tier, ...]
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    order: Order = "strict"
    """Between tiers: rank with floors and ageing, or shares by weight."""
    within_user: WithinUser = "fcfs"
    cost: Cost = "tokens"
    weights: CostWeights = field(default_factory=CostWeights)
    gpu_time: GpuTime = field(default_factory=GpuTime)
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By model; a model without one is charged by `weights`."""
    ageing: Ageing = field(default_factory=Ageing)
    headroom_max: float = 0.20
    headroom_decay: float | None = None
    """Lambda of `h_max e^(-lambda q)`; None derives it from the number of tiers."""
    lend: bool = True
    """True: a tier's headroom is reserved only while the tier had traffic within `hold_s`."""
    hold_s: float = 60.0
    min_inflight: int = 1
    """The speed gate never closes while fewer sequences than this run on the replica."""
    allowance: Allowance = "bridge"
    """What may wait inside an engine: enough to bridge a round trip, or always `queue_limit`."""
    limiter: Limiter = "adaptive"
    inflight_limit: int | None = None
    """Most sequences on one replica; None: its slots. The adaptive limiter lowers it further."""
    reserve_after_s: float = 5.0
    """A request passed over for its size for longer than this gets a replica drained for it."""
    warm_up_s: float = 10.0
    """A fresh replica beside others is filled slot by slot over this time; 0: at once."""
    affinity: Affinity = field(default_factory=Affinity)
    recall: bool = True
    """Whether what waits inside an engine may be taken back: to another replica, or for a higher
    tier. Only what has produced nothing, and each request once."""
    recall_gap: float = 0.3
    """Least difference of normalised freeness for a move to another replica [K-tier Llumnix]."""
    migrate_running: MigrateRunning = "off"
    """Whether what runs may be moved: off a replica that is drained, or to a freer one as well."""
    continuation_wait_s: float = 30.0
    """How long the rest of a broken stream may wait for a replica."""
    scaling: Scaling = field(default_factory=Scaling)
    scrape_interval_s: float = 1.0
    bounds: Bounds = field(default_factory=Bounds)
    sharers: int = 1
    """Schedulers that put requests on the same replicas without hearing of one another, this one
    included: each keeps to its part of every replica, and of every cap."""
    apart: frozenset[str] | None = None
    """The models of the pools that they share; None: all. Every cap is shared, whatever runs."""
    release_at_once: bool = False
    """The contrast (`--policy fifo`): no queue, no gate, no fairness, everything is forwarded."""

    def headroom_fraction(self, tier: int) -> float:
        """Share of a replica's capacity reserved for `tier`, 0..1 [K-tier Llumnix, SMG]."""
        last = len(self.tiers) - 1
        if last == 0:
            return 0.0
        decay = HEADROOM_DECAY_SPAN / last if self.headroom_decay is None else self.headroom_decay
        return self.headroom_max * math.exp(-decay * tier)

    def sharers_of(self, models: frozenset[str]) -> int:
        """How many share the replicas of the pool of these models, this one included."""
        is_shared = self.apart is None or not self.apart.isdisjoint(models)
        return self.sharers if is_shared else 1

    def of_pool(self, models: frozenset[str]) -> "Policy":
        """The same, as it is for the pool of these models."""
        sharers = self.sharers_of(models)
        return self if sharers == self.sharers else replace(self, sharers=sharers)

    def shared_like(self, other: "Policy") -> "Policy":
        """The same among as many schedulers as `other`."""
        return replace(self, sharers=other.sharers, apart=other.apart)

    def tenant_weight(self, tenant: str) -> float:
        """Weight of `tenant` among the tenants; 1 where nothing was configured."""
        known = self.tenants.get(tenant)
        return known.weight if known else 1.0

    def user_weight(self, tenant: str, user: str) -> float:
        """Weight of `user` among the users of `tenant`; 1 where nothing was configured."""
        known = self.tenants.get(tenant)
        return known.users.get(user, 1.0) if known else 1.0


DEFAULT_TIERS = (
    Tier(name="critical", queue_limit=4, patience_s=30, ttft_target_ms=500, tpot_target_ms=100),
    Tier(name="high", queue_limit=3, patience_s=60, min_share=0.02, ttft_target_ms=1000,
         tpot_target_ms=100),
    Tier(name="standard", queue_limit=2, patience_s=300, min_share=0.02, ttft_target_ms=5000,
         tpot_target_ms=150),
    Tier(name="background", queue_limit=0, tpot_limit_ms=75, patience_s=3600, min_share=0.02),
)  # fmt: skip
