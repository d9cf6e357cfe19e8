"""A batch and a file, and which state follows on which: pure, without a clock and without a store.

A change returns the batch as it is afterwards; who asks for what cannot be gets BatchStateError.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gateway.batch.lines import Fault

Status = Literal[
    "validating", "failed", "in_progress", "finalizing",
    "completed", "expired", "cancelling", "cancelled",
]  # fmt: skip
Ending = Literal["completed", "expired", "cancelled", "failed"]
OPEN: frozenset[Status] = frozenset({"validating", "in_progress", "finalizing", "cancelling"})
"""Something is still done for a batch in these."""
CLOSING: frozenset[Status] = frozenset({"finalizing", "cancelling"})
"""In these no line is run any more."""


class BatchStateError(Exception):
    """What was asked for cannot follow on the state of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose a batch or a file is; for anybody else it does not exist."""

    tenant: str
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a user. Instants are seconds since 1970."""

    id: str
    owner: Owner
    name: str
    purpose: str
    size: int
    created_at: float
    expires_at: float | None
    object: str
    """Under which name its bytes are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What lines used, together."""

    input: int = 0
    cached: int = 0
    output: int = 0

    def plus(self, other: "Tokens") -> "Tokens":
        """Both together."""
        return Tokens(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            output=self.output + other.output,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of lines so far."""

    completed: int = 0
    failed: int = 0
    tokens: Tokens = Tokens()

    def plus(self, other: "Counts") -> "Counts":
        """Both together."""
        return Counts(
            completed=self.completed + other.completed,
            failed=self.failed + other.failed,
            tokens=self.tokens.plus(other.tokens),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch. Instants are seconds since 1970; None: that has not happened."""

    id: str
    owner: Owner
    key_id: str
    """Names the key in whose name its lines run."""
    tier: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: float
    expires_at: float
    metadata: Mapping[str, str] | None = None
    output_expires_after_s: float | None = None
    status: Status = "validating"
    ends_as: Ending = "completed"
    """What it becomes once its outputs are put together."""
    model: str | None = None
    """Of its first line."""
    total: int = 0
    counts: Counts = Counts()
    errors: tuple[Fault, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether something is still done for it."""
        return self.status in OPEN


def seconds_left(
    status: str, *, began_at: float | None, done: int, total: int, now: float
) -> float | None:
    """Until the lines of a batch are done, at the pace so far; None: that cannot be told."""
    if status != "in_progress" or not done or began_at is None:
        return None
    return max(0.0, (now - began_at) / done * (total - done))


def validated(batch: Batch, now: float, *, total: int, model: str | None) -> Batch:
    """Its file was found valid; one that is being cancelled goes on to its end."""
    known = replace(batch, total=total, model=model)
    if batch.status != "validating":
        return known
    return replace(known, status="in_progress", in_progress_at=now)


def invalid(batch: Batch, now: float, faults: tuple[Fault, ...]) -> Batch:
    """Its file was found wrong."""
    if batch.status == "cancelling":
        return ended(batch, now)
    return replace(batch, status="failed", failed_at=now, errors=faults)


def all_run(batch: Batch, now: float) -> Batch:
    """Each of its lines has its answer."""
    assert batch.status == "in_progress"
    return replace(batch, status="finalizing", finalizing_at=now)


def expired(batch: Batch, now: float) -> Batch:
    """Its window has closed; what is done already is kept. Raises BatchStateError."""
    if batch.status == "validating":
        return replace(batch, status="expired", ends_as="expired", expired_at=now)
    if batch.status != "in_progress":
        raise BatchStateError(f"A batch that is {batch.status} does not expire.")
    return replace(batch, status="finalizing", ends_as="expired", finalizing_at=now)


def broken_off(batch: Batch, now: float, fault: Fault) -> Batch:
    """Its lines can run no more; what is done already is kept. Raises BatchStateError."""
    if batch.status != "in_progress":
        raise BatchStateError(f"A batch that is {batch.status} runs no lines.")
    return replace(batch, status="finalizing", ends_as="failed", finalizing_at=now, errors=(fault,))


def cancelled(batch: Batch, now: float) -> Batch:
    """Its user wants it no more; what is done already is kept. Raises BatchStateError."""
    if batch.status == "cancelling":
        return batch
    if batch.status not in OPEN:
        raise BatchStateError(f"A batch that is {batch.status} cannot be cancelled.")
    return replace(batch, status="cancelling", ends_as="cancelled", cancelling_at=now)


def ended(
    batch: Batch,
    now: float,
    *,
    output_file_id: str | None = None,
    error_file_id: str | None = None,
) -> Batch:
    """Its outputs are put together."""
    assert batch.status in CLOSING
    done = replace(
        batch,
        status=batch.ends_as,
        output_file_id=output_file_id,
        error_file_id=error_file_id,
    )
    match batch.ends_as:
        case "completed":
            return replace(done, completed_at=now)
        case "expired":
            return replace(done, expired_at=now)
        case "cancelled":
            return replace(done, cancelled_at=now)
        case "failed":
            return replace(done, failed_at=now)
