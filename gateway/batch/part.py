"""One part of a batch while this gateway runs it: what has its answer, and what is not kept yet."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.batch.files import Files
from gateway.batch.pieces import Growing
from gateway.batch.reading import PartReader
from gateway.batch.record import Counts, Tokens
from gateway.batch.store import Gains, Lease, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line that has its answer."""

    index: int
    text: bytes
    """Its line of output."""
    is_error: bool
    tokens: Tokens


class Part:
    """One lease, with its outputs."""

    def __init__(self, lease: Lease, files: Files, reader: PartReader) -> None:
        self.lease = lease
        self.reader = reader
        self._done = bytearray(lease.done)
        self._counts = lease.counts
        stem = f"{lease.batch_id}.{lease.part:06d}.{lease.epoch}"
        self._output = Growing(files, f"{stem}.output", is_errors=False)
        self._errors = Growing(files, f"{stem}.errors", is_errors=True)
        self._fresh: list[Result] = []
        """Not kept yet."""
        self._asked: tuple[int, Gains] | None = None
        """Of them the first so many, on their way to the store."""
        self.fresh_bytes = 0

    @property
    def has_news(self) -> bool:
        """Whether something is to be kept."""
        return bool(self._fresh)

    @property
    def is_over(self) -> bool:
        """Whether all its lines have their output, and all that is kept."""
        return not self._fresh and 0 not in self._done

    def add(self, result: Result) -> None:
        """A line has its answer."""
        self._fresh.append(result)
        self.fresh_bytes += len(result.text)

    async def written(self) -> Gains:
        """What is to be told to the store; its bytes are on the disk. Raises FilesError."""
        fresh = list(self._fresh)
        done, counts = bytearray(self._done), self._counts
        for each in fresh:
            done[each.index] = 1
            counts = counts.plus(_counted(each))
        pieces: list[Piece] = []
        for growing, is_error in ((self._output, False), (self._errors, True)):
            data = _joined(each.text for each in fresh if each.is_error is is_error)
            if data:
                pieces.append(await growing.put(data))
        gains = Gains(lease=self.lease, done=bytes(done), counts=counts, pieces=tuple(pieces))
        self._asked = len(fresh), gains
        return gains

    def kept(self) -> None:
        """The store has what was `written` last."""
        assert self._asked is not None
        count, gains = self._asked
        self._asked = None
        del self._fresh[:count]
        self.fresh_bytes = sum(len(each.text) for each in self._fresh)
        self._done, self._counts = bytearray(gains.done), gains.counts
        for piece in gains.pieces:
            (self._errors if piece.is_errors else self._output).confirm(piece)

    async def close(self) -> None:
        """It is run no more here. Raises FilesError."""
        await self._output.close()
        await self._errors.close()


def _joined(texts: Iterable[bytes]) -> bytes:
    return b"".join(texts)


def _counted(result: Result) -> Counts:
    return Counts(
        completed=0 if result.is_error else 1,
        failed=1 if result.is_error else 0,
        tokens=result.tokens,
    )
