"""What travels into the scheduler (events) and out of it (decisions).

Nobody changes one. Most are frozen; those of which every request needs some are not, but have only
fields that are `Final`, and write their `__init__` out: compiled, it takes a tenth of the time.
Instants and durations are seconds, of one monotonic clock that the caller owns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gateway.core.policy import Policy
from gateway.core.report import ReplicaReport


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


class Fault(StrEnum):
    """What of the engine, or of the way to it, made a request fail."""

    REFUSED = "refused"
    """Nobody listens there."""
    CONNECT = "connect"
    """No connection for another reason: too slow, no such name, no trust."""
    SERVER_ERROR = "server_error"
    """The engine answered 5xx, or with an error event, and was not merely busy."""
    BROKE_OFF = "broke_off"
    """The answer ended before its end, or was none."""
    STALLED = "stalled"
    """The engine kept the connection and did nothing any more."""
    STUCK = "stuck"
    """The engine goes on with others, and did nothing more for this one."""
    DRAINING = "draining"
    """The engine says that it shuts down: what runs there goes on, nothing new is taken."""


PREFIX_BLOCK_TOKENS: Final = 64
"""Tokens that one hash of `Request.prefix` stands for."""


@dataclass(slots=True, init=False)
class Request:
    """One request as the scheduler sees it: who, what it needs, how long it may wait."""

    id: Final[str]
    model: Final[str]
    tier: Final[int]
    tenant: Final[str]
    user: Final[str]
    arrived_at: Final[float]
    prompt_tokens: Final[int | None]
    """Exact where the caller knows it; None is estimated from `body_bytes` (see `predict.py`)."""
    output_tokens_max: Final[int | None]
    """The client's `max_tokens`; None when it set none; 0 for routes that decode nothing."""
    sequences: Final[int]
    """n x number of prompts: how many sequences the engine runs for it."""
    streams: Final[bool]
    body_bytes: Final[int]
    patience_s: Final[float | None]
    """Asked for by the request; the tier's own patience is the upper bound."""
    route: Final[str]
    excluded: Final[frozenset[str]]
    """Replicas that already failed this very request."""
    only: Final[str | None]
    """The one replica that can serve it, since it holds what the request goes on from."""
    prefix: Final[tuple[int, ...]]
    """Chained hashes of the leading blocks of the prompt, each of `PREFIX_BLOCK_TOKENS` tokens:
    equal hashes mean that everything up to the end of that block is equal."""
    session: Final[str | None]
    """Requests of one session of one user like to stay on one replica."""
    read_timeout_s: Final[float | None]
    """A plain client gives up after this long; streams hear comments meanwhile."""
    ttft_target_s: Final[float | None]
    """Sooner than its tier's target, for `within_user: deadline`."""
    is_continuation: Final[bool]
    """The rest of a broken stream: first in its tier, whatever the bounds; the prompt is free."""
    is_continuable: Final[bool]
    """Whether its rest could run elsewhere, once it has begun: only such a one is ever moved."""
    caps: Final[tuple[tuple[str, int], ...]]
    """(holder, most requests that may run under it at once), of all that this one counts under."""

    def __init__(
        self,
        *,
        id: str,
        model: str,
        tier: int,
        tenant: str,
        user: str,
        arrived_at: float,
        prompt_tokens: int | None = None,
        output_tokens_max: int | None = None,
        sequences: int = 1,
        streams: bool = False,
        body_bytes: int = 0,
        patience_s: float | None = None,
        route: str = "chat",
        excluded: frozenset[str] = frozenset(),
        only: str | None = None,
        prefix: tuple[int, ...] = (),
        session: str | None = None,
        read_timeout_s: float | None = None,
        ttft_target_s: float | None = None,
        is_continuation: bool = False,
        is_continuable: bool = False,
        caps: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.id = id
        self.model = model
        self.tier = tier
        self.tenant = tenant
        self.user = user
        self.arrived_at = arrived_at
        self.prompt_tokens = prompt_tokens
        self.output_tokens_max = output_tokens_max
        self.sequences = sequences
        self.streams = streams
        self.body_bytes = body_bytes
        self.patience_s = patience_s
        self.route = route
        self.excluded = excluded
        self.only = only
        self.prefix = prefix
        self.session = session
        self.read_timeout_s = read_timeout_s
        self.ttft_target_s = ttft_target_s
        self.is_continuation = is_continuation
        self.is_continuable = is_continuable
        self.caps = caps


@dataclass(slots=True, init=False)
class Usage:
    """Tokens an engine charged for, as it reported them or as counted from the stream."""

    prompt_tokens: Final[int]
    """0: not reported, the estimate stands."""
    output_tokens: Final[int]
    cached_tokens: Final[int]

    def __init__(
        self, *, prompt_tokens: int = 0, output_tokens: int = 0, cached_tokens: int = 0
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.cached_tokens = cached_tokens


# --- events -----------------------------------------------------------------------------------


@dataclass(slots=True, init=False)
class Arrived:
    """A request wants to be released; a retry is a new arrival with the old `arrived_at`."""

    request: Final[Request]

    def __init__(self, request: Request) -> None:
        self.request = request


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client of a waiting or granted request left before anything was answered."""

    request_id: str


@dataclass(slots=True, init=False)
class FirstToken:
    """The first data event of a granted request reached the gateway."""

    request_id: Final[str]

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id


@dataclass(slots=True, init=False)
class Progressed:
    """Output tokens produced so far, batched per replica (at most four a second)."""

    replica: Final[str]
    output_tokens: Final[dict[str, int]]
    heard_at: Final[float | None]
    """When the last data event of any of them came; None where nobody noted it."""
    held: Final[frozenset[str]]
    """All that are held up by their clients: the engine may have done with those."""

    def __init__(
        self,
        replica: str,
        output_tokens: dict[str, int],
        heard_at: float | None = None,
        held: frozenset[str] = frozenset(),
    ) -> None:
        self.replica = replica
        self.output_tokens = output_tokens
        self.heard_at = heard_at
        self.held = held


@dataclass(slots=True, init=False)
class Finished:
    """The upstream of a granted request ended. Legal in every state, and idempotent."""

    request_id: Final[str]
    outcome: Final[Outcome]
    usage: Final[Usage | None]
    tpot_s: Final[float | None]
    """(last - first)/(tokens - 1) of this stream, less pauses a slow client caused."""
    fault: Final[Fault | None]
    """Why it failed, where that is the engine's fault or that of the way to it."""
    goes_on: Final[bool]
    """The rest is generated elsewhere: what there is so far is charged, although this failed."""

    def __init__(
        self,
        request_id: str,
        outcome: Outcome,
        usage: Usage | None = None,
        tpot_s: float | None = None,
        *,
        fault: Fault | None = None,
        goes_on: bool = False,
    ) -> None:
        self.request_id = request_id
        self.outcome = outcome
        self.usage = usage
        self.tpot_s = tpot_s
        self.fault = fault
        self.goes_on = goes_on


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
    """A recalled request had begun, or one to be moved cannot be: it stays where it is."""

    request_id: str


@dataclass(slots=True, init=False)
class Adopted:
    """A request already runs on `replica`: another scheduler granted it `running_s` ago."""

    request: Final[Request]
    replica: Final[str]
    running_s: Final[float]
    is_started: Final[bool]
    output_tokens: Final[int]

    def __init__(
        self,
        *,
        request: Request,
        replica: str,
        running_s: float = 0.0,
        is_started: bool = True,
        output_tokens: int = 0,
    ) -> None:
        self.request = request
        self.replica = replica
        self.running_s = running_s
        self.is_started = is_started
        self.output_tokens = output_tokens


@dataclass(frozen=True, slots=True)
class Disowned:
    """A granted request may run on, but nobody will tell its end: foreign load from now on."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Another scheduler decides about these, if they wait: nothing is released in their place."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Readmitted:
    """These wait, let in by another scheduler: they all come before any is released."""

    requests: tuple[Request, ...]


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
    orders_by_tier: bool = False
    """Whether what waits inside the engine begins by tier (`--scheduling-policy priority`)."""


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
class ReplicaRefused:
    """A connection to the replica was refused: nobody listens, whatever still runs there."""

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
    | Adopted | Disowned | Withdrawn | Readmitted | ReplicaFound | ReplicaReported
    | ReplicaRefused | ReplicaLost | ReplicaRemoved | DrainAsked | PolicyChanged | Closed | Woke
)  # fmt: skip


# --- decisions --------------------------------------------------------------------------------


@dataclass(slots=True, init=False)
class Granted:
    """The request may use one slot of `replica` now. Ends with exactly one `Finished`."""

    request_id: Final[str]
    replica: Final[str]
    waited_s: Final[float]

    def __init__(self, request_id: str, replica: str, waited_s: float) -> None:
        self.request_id = request_id
        self.replica = replica
        self.waited_s = waited_s


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
class MoveWanted:
    """End this running request's stay on `replica` on purpose; its rest comes as an arrival.

    Only of what `is_continuable`. Answered by its `Finished`, or by `RecallTooLate` where it stays.
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


Decision = Granted | Refused | Recalled | MoveWanted | ScaleAdvised | WakeWanted
