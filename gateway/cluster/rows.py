"""The shapes that messages have between gateways: arrays, each told apart by its first number.

They are what is read and checked; what they mean is in `messages.py`. A change of any is another
`VERSION`: gateways of different versions do not understand one another, and say so.
"""

from typing import Final, final

from msgspec import Struct

from gateway.core.messages import Fault, Outcome, Reason

VERSION: Final = 2

(
    ARRIVED, FIRST_TOKEN, PROGRESSED, FINISHED, BOUNCED, RECALL_DONE, RECALL_TOO_LATE, CANCELLED,
    SYNCED, BEAT, LED, LEFT,
    GRANTED, REFUSED, RECALLED, MOVE_WANTED, PLACED, ASTRAY,
) = range(18)  # fmt: skip


class Row(Struct, array_like=True, gc=False):
    """What all have: an array that holds no cycles."""


class RequestRow(Row):
    """A `Request` without its instant; what most do not have comes last, and may be missing."""

    id: str
    model: str
    tier: int
    tenant: str
    user: str
    prompt_tokens: int | None
    output_tokens_max: int | None
    streams: bool
    body_bytes: int
    route: str
    tag: int
    """What the hashes of all blocks have in common."""
    blocks: bytes
    """The rest of each, in four bytes, the lowest first."""
    is_continuable: bool
    sequences: int = 1
    patience_s: float | None = None
    excluded: tuple[str, ...] = ()
    only: str | None = None
    session: str | None = None
    read_timeout_s: float | None = None
    ttft_target_s: float | None = None
    is_continuation: bool = False
    caps: tuple[tuple[str, int], ...] = ()


class OpenRow(Row):
    """An `Open`."""

    request: RequestRow
    waited_s: float
    replica: str | None
    running_s: float
    is_started: bool
    output_tokens: int
    was_let_in: bool


class Placing(Row):
    """Whose it is and where in the order; the beginning of all that is numbered."""

    pool: str
    epoch: int
    session: int
    number: int


class EventRow(Placing):
    """`Told` of what happened to one request."""

    request_id: str


class RulingRow(Placing):
    """`Decided` about one request."""

    request_id: str


@final
class ArrivedRow(Placing, tag=ARRIVED):
    """`Told` of an `Arrived`."""

    ago_s: float | None
    request: RequestRow


@final
class FirstTokenRow(EventRow, tag=FIRST_TOKEN):
    """`Told` of a `FirstToken`."""


class ProgressedRow(Placing, tag=PROGRESSED):
    """`Told` of a `Progressed`."""

    ago_s: float | None
    replica: str
    output_tokens: dict[str, int]
    held: frozenset[str]


@final
class FinishedRow(EventRow, tag=FINISHED):
    """`Told` of a `Finished`."""

    outcome: Outcome
    usage: tuple[int, int, int] | None
    tpot_s: float | None
    fault: Fault | None
    goes_on: bool


class BouncedRow(EventRow, tag=BOUNCED):
    """`Told` of a `Bounced`."""


class RecallDoneRow(EventRow, tag=RECALL_DONE):
    """`Told` of a `RecallDone`."""


class RecallTooLateRow(EventRow, tag=RECALL_TOO_LATE):
    """`Told` of a `RecallTooLate`."""


class CancelledRow(EventRow, tag=CANCELLED):
    """`Told` of a `Cancelled`."""


class SyncedRow(Row, tag=SYNCED):
    """A `Synced`."""

    pool: str
    epoch: int
    session: int
    requests: tuple[OpenRow, ...]
    tiers: tuple[str, ...]


class BeatRow(Placing, tag=BEAT):
    """A `Beat`."""


class LedRow(Placing, tag=LED):
    """A `Led`."""


class LeftRow(Row, tag=LEFT):
    """A `Left`."""

    pool: str
    epoch: int


@final
class GrantedRow(RulingRow, tag=GRANTED):
    """`Decided` of a `Granted`."""

    replica: str
    waited_s: float


class RefusedRow(RulingRow, tag=REFUSED):
    """`Decided` of a `Refused`."""

    reason: Reason
    retry_after_s: float | None


class RecalledRow(RulingRow, tag=RECALLED):
    """`Decided` of a `Recalled`."""

    replica: str


class MoveWantedRow(RulingRow, tag=MOVE_WANTED):
    """`Decided` of a `MoveWanted`."""

    replica: str


class PlacedRow(RulingRow, tag=PLACED):
    """`Decided` of a `Placed`."""

    position: int
    wait_s: float | None


class AstrayRow(RulingRow, tag=ASTRAY):
    """`Decided` of an `Astray`."""


MessageRow = (
    ArrivedRow | FirstTokenRow | ProgressedRow | FinishedRow | BouncedRow | RecallDoneRow
    | RecallTooLateRow | CancelledRow | SyncedRow | BeatRow | LedRow | LeftRow
    | GrantedRow | RefusedRow | RecalledRow | MoveWantedRow | PlacedRow | AstrayRow
)  # fmt: skip
Batch = tuple[str, list[MessageRow]]
"""(sender, what it says)."""
