"""What travels into the scheduler (events) and out of it (decisions), and what engines report.

Nobody changes one (a test looks). Most are frozen; those of which every request needs some are
not, since a frozen one takes three times as long to make. Events and decisions are past
participles; instants are seconds of one monotonic clock that the caller owns; durations are
seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.policy import Policy


class Reason(StrEnum):
    """Why a request was refused; `errors.py` maps each to a status, a code and headers."""

    USER_QUEUE_FULL = "user_queue_full"
    QUEUE_FULL = "queue_full"
    SHED = "shed"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    PATIENCE_SPENT = "patience_spent"
    WAIT_TOO_LONG = "wait_too_long"
    """Refused on arrival: it would most likely not be served within its patience."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """Longer than every replica of the model can hold."""
    NO_REPLICA = "no_replica"
    SHUTTING_DOWN = "shutting_down"


class Outcome(StrEnum):
    """How a granted request ended, seen from the engine."""

    DONE = "done"
    CANCELLED = "cancelled"
    """The client left."""
    FAILED = "failed"
    """The engine or the way to it broke; the client is not charged."""
    REJECTED = "rejected"
    """The engine answered 4xx: nothing was generated."""


PREFIX_BLOCK_TOKENS = 64
"""Tokens that one hash of `Request.prefix` stands for."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One request as the scheduler sees it: who, what it needs, how long it may wait."""

    id: str
    model: str
    tier: int
    tenant: str
    user: str
    arrived_at: float
    prompt_tokens: int | None = None
    """Exact where the caller knows it; None is estimated from `body_bytes` (see `predict.py`)."""
    output_tokens_max: int | None = None
    """The client's `max_tokens`; None when it set none; 0 for routes that decode nothing."""
    sequences: int = 1
    """n x number of prompts: how many sequences the engine runs for it."""
    streams: bool = False
    body_bytes: int = 0
    patience_s: float | None = None
    """Asked for by the request; the tier's own patience is the upper bound."""
    route: str = "chat"
    excluded: frozenset[str] = frozenset()
    """Replicas that already failed this very request."""
    only: str | None = None
    """The one replica that can serve it, since it holds what the request goes on from."""
    prefix: tuple[int, ...] = ()
    """Chained hashes of the leading blocks of the prompt, each of `PREFIX_BLOCK_TOKENS` tokens:
    equal hashes mean that everything up to the end of that block is equal."""
    session: str | None = None
    """Requests of one session of one user like to stay on one replica."""
    read_timeout_s: float | None = None
    """A plain client gives up after this long; streams hear comments meanwhile."""
    ttft_target_s: float | None = None
    """Sooner than its tier's target, for `within_user: deadline`."""
    is_continuation: bool = False
    """The rest of a broken stream: first in its tier, whatever the bounds; the prompt is free."""


@dataclass(slots=True, kw_only=True)
class Usage:
    """Tokens an engine charged for, as it reported them or as counted from the stream."""

    prompt_tokens: int = 0
    """0: not reported, the estimate stands."""
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """One scrape of an engine's metrics in common units. None means unknown, never zero.

    Counters are totals since the engine started; the ledger forms the differences.
    With data parallelism gauges and counters are summed over the engines, KV use is their mean.
    """

    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    """0..1"""
    kv_capacity_tokens: int | None = None
    engines: int = 1
    slots: int | None = None
    """Where the engine says it (SGLang, TGI, llama.cpp); vLLM does not."""
    itl_sum_s: float | None = None
    itl_count: float | None = None
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    prefill_sum_s: float | None = None
    prefill_count: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    iterations: float | None = None
    """Engine steps so far: the sign of life that `/health` is not."""
    preemptions: float | None = None
    missing: tuple[str, ...] = ()
    """Names this engine's dialect expects and did not find: shown to the operator."""


# --- events -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Arrived:
    """A request wants to be released; a retry is a new arrival with the old `arrived_at`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client of a waiting or granted request left before anything was answered."""

    request_id: str


@dataclass(slots=True)
class FirstToken:
    """The first data event of a granted request reached the gateway."""

    request_id: str


@dataclass(slots=True)
class Progressed:
    """Output tokens produced so far, batched per replica (at most four a second)."""

    replica: str
    output_tokens: dict[str, int]


@dataclass(slots=True)
class Finished:
    """The upstream of a granted request ended. Legal in every state, and idempotent."""

    request_id: str
    outcome: Outcome
    usage: Usage | None = None
    tpot_s: float | None = None
    """(last - first)/(tokens - 1) of this stream, less pauses a slow client caused."""


@dataclass(frozen=True, slots=True)
class Bounced:
    """The engine said it is busy: the request goes back to its place, the replica rests."""

    request_id: str


@dataclass(frozen=True, slots=True)
class RecallDone:
    """A recalled request was taken back before it began: it goes to its place in the queue."""

    request_id: str


@dataclass(frozen=True, slots=True)
class RecallTooLate:
    """A recalled request had begun, or ended: it stays where it is."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A request already runs on `replica`: another scheduler granted it `running_s` ago."""

    request: Request
    replica: str
    running_s: float = 0.0
    is_started: bool = True
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFound:
    """A replica answers, or what it serves changed. Idempotent."""

    replica: str
    models: frozenset[str]
    slots: int | None = None
    """`max_num_seqs` from the configuration; None when it must be asked or learnt."""
    weight: float = 1.0
    context_tokens: int | None = None
    """Longest prompt and output together (`max_model_len`); None where the engine does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReported:
    """A scrape came back. `sent_at` is when it was asked for: the ledger of that instant counts."""

    replica: str
    sent_at: float
    report: ReplicaReport
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica is gone. Its grants end by their own `Finished`; nothing new goes there."""

    replica: str


@dataclass(frozen=True, slots=True)
class ReplicaRemoved:
    """A replica is no longer configured; forgotten once its grants have ended."""

    replica: str


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Nothing new is put on the replica (`draining`) or it may be used again."""

    replica: str
    draining: bool = True


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """A new policy. `moved_to` names, for each removed tier, where its requests go."""

    policy: Policy
    moved_to: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Closed:
    """The gateway shuts down: what waits is refused, what runs is left alone."""


@dataclass(frozen=True, slots=True)
class Woke:
    """The instant of an earlier `WakeWanted` has come."""


Event = (
    Arrived | Cancelled | FirstToken | Progressed | Finished | Bounced | RecallDone | RecallTooLate
    | Adopted | ReplicaFound | ReplicaReported | ReplicaLost | ReplicaRemoved | DrainAsked
    | PolicyChanged | Closed | Woke
)  # fmt: skip


# --- decisions --------------------------------------------------------------------------------


@dataclass(slots=True)
class Granted:
    """The request may use one slot of `replica` now. Ends with exactly one `Finished`."""

    request_id: str
    replica: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is answered without running: on arrival (rejected) or later (evicted)."""

    request_id: str
    reason: Reason
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Recalled:
    """Take this request back from `replica` if it has produced nothing yet.

    Answered by exactly one of `RecallDone`, `RecallTooLate`, `Finished` and `Bounced`.
    """

    request_id: str
    replica: str


@dataclass(frozen=True, slots=True)
class ScaleAdvised:
    """The pool that serves `models` should have so many replicas, and lose `remove` if fewer."""

    models: frozenset[str]
    replicas: int
    remove: str | None = None


@dataclass(frozen=True, slots=True)
class WakeWanted:
    """Tell me `Woke` at this instant unless something else happens before."""

    at: float


Decision = Granted | Refused | Recalled | ScaleAdvised | WakeWanted
