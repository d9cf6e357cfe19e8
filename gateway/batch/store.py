"""What has to survive the process of batches, behind one port: their state, claims, and progress.

Work is dealt out in parts: checking a file, running a range of lines, putting outputs together.
Whoever works on a part has a lease on it, with a number that grows with each claim. All that says
how far a part has come is one commit, which that number, and the state of the batch, must allow:
so however many gateways work, are killed, or come back from the dead, each line counts once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.batch.record import Batch, Counts, Owner, StoredFile

CHECK = -1
"""The part in which a file is checked."""
NONE = Counts()
FINISH = -2
"""The part in which outputs are put together; the others are named by their first request."""


class LeaseLostError(Exception):
    """The part is somebody else's by now, or the batch runs no lines any more: nothing was kept."""


class StaleError(Exception):
    """The batch was changed in the meantime: look at it again."""


class QuotaError(Exception):
    """There is as much as there may be of one tenant's; the text says of what."""


class InUseError(Exception):
    """A batch that is open needs the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much one tenant may have."""

    files: int
    bytes: int
    open_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A batch as it is kept, and its version, which grows with each change."""

    batch: Batch
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on one part, as long as it is renewed."""

    batch_id: str
    part: int
    epoch: int
    lines: int = 0
    """Requests of the part."""
    start: int = 0
    """Byte of the input at which the first of them stands."""
    done: bytes = b""
    """A byte for each request: 1 where it has its output."""
    counts: Counts = NONE
    """Of those that have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of output that count: as many, from the beginning of an object."""

    object: str
    size: int
    is_errors: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """What a part has come to, with everything before: to tell it twice is to tell it once."""

    lease: Lease
    done: bytes
    counts: Counts
    pieces: tuple[Piece, ...]
    """Those that are new or longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A part of which not all requests were run."""

    first: int
    start: int
    done: bytes


class BatchStore(Protocol):
    """All methods raise `StoreError` where the store cannot be used, within a bounded time.

    Instants are seconds since 1970, and come from the caller.
    """

    async def open(self) -> None:
        """Check and migrate it."""
        ...

    async def close(self) -> None:
        """Let go of it; what was acknowledged is kept."""
        ...

    async def add_file(self, file: StoredFile, quota: Quota) -> None:
        """Keep a file. Raises QuotaError."""
        ...

    async def file(self, file_id: str) -> StoredFile | None:
        """The file of this id."""
        ...

    async def files(
        self, owner: Owner, *, after: str | None, limit: int, purpose: str | None, is_newest: bool
    ) -> list[StoredFile]:
        """Files of `owner`, newest or oldest first, those behind `after`."""
        ...

    async def drop_file(self, file_id: str) -> None:
        """Forget a file. Raises InUseError."""
        ...

    async def add_batch(self, batch: Batch, quota: Quota) -> None:
        """Keep a new batch, with its first part. Raises QuotaError."""
        ...

    async def batch(self, batch_id: str) -> Kept | None:
        """A batch with its counts as they are."""
        ...

    async def batches(self, owner: Owner, *, after: str | None, limit: int) -> list[Batch]:
        """Batches of `owner`, newest first, those behind `after`, with their counts."""
        ...

    async def newest(self, limit: int) -> list[Batch]:
        """Batches of everybody with their counts: open ones first, each kind newest first."""
        ...

    async def put(self, kept: Kept) -> None:
        """Change a batch whose version is as it was read. Raises StaleError."""
        ...

    async def workable(self, now: float) -> list[str]:
        """Batches of which something can be claimed, oldest first."""
        ...

    async def claim(
        self, batch_id: str, *, holder: str, until: float, now: float, runs_lines: bool
    ) -> Lease | None:
        """The next part that nobody works on, of lines or of else; None: there is none."""
        ...

    async def renew(self, leases: Sequence[Lease], until: float) -> list[Lease]:
        """Those that are still held, and are until then."""
        ...

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give parts back, for others to claim at once."""
        ...

    async def checked(self, lease: Lease, kept: Kept, starts: Sequence[tuple[int, int]]) -> None:
        """The file was checked: what the batch became, of the version that it was; its parts.

        Raises LeaseLostError, and StaleError where somebody else changed it.
        """
        ...

    async def commit(self, gains: Sequence[Gains], now: float) -> list[Lease]:
        """Keep gains; once no line is left the batch is `finalizing`.

        Those of each part as a whole or not at all, and where it raises StoreError nobody knows
        which: to tell them again is right. Returns leases that are lost: their gains were not
        kept, or were before.
        """
        ...

    async def pieces(self, batch_id: str) -> list[Piece]:
        """All bytes of output that count."""
        ...

    async def rests(self, batch_id: str) -> list[Rest]:
        """The parts of which not all requests were run."""
        ...

    async def finish(self, lease: Lease, kept: Kept, files: Sequence[StoredFile]) -> None:
        """The outputs are there: what the batch became, of the version that it was.

        Raises LeaseLostError, and StaleError where somebody else changed it.
        """
        ...

    async def due(self, now: float) -> tuple[list[Kept], list[StoredFile]]:
        """Batches whose window has closed while lines were left, and files to be forgotten."""
        ...

    async def forget_batches(self, before: float) -> None:
        """Forget batches that ended, and were made before then."""
        ...

    async def objects(self) -> set[str]:
        """Names of all objects that are needed."""
        ...
