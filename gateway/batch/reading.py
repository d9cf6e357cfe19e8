"""A file of lines, read in slices: never more of it in memory than a slice and the longest line.

Slices are cut and parsed in a thread, a few hundred lines at a time, so that neither the loop nor
those who wait for it see a long file.
"""

from gateway.api.threads import in_thread
from gateway.batch.files import Files
from gateway.batch.lines import Line, requests_in, whole_lines
from gateway.batch.record import StoredFile


class LineTooLongError(Exception):
    """A line has more bytes than any request may have."""


class Slices:
    """The lines of a file from a byte on, slice by slice."""

    def __init__(
        self, files: Files, file: StoredFile, *, start: int = 0, line_bytes_max: int | None = None
    ) -> None:
        """`line_bytes_max` is None where the lines were checked before."""
        self._files = files
        self._file = file
        self._at = start
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._line_bytes_max = line_bytes_max
        self.start = start
        """Where the lines stand that came last."""
        self.is_over = False

    async def next(self) -> list[bytes]:
        """The next lines, without their ends; nothing only where `is_over`.

        Raises FilesError, and LineTooLongError.
        """
        while not self.is_over:
            if self._line_bytes_max is not None and self._rest_bytes > self._line_bytes_max:
                raise LineTooLongError
            self.start = self._at - self._rest_bytes
            # S3 refuses to read from where an object ends, so nobody asks it to.
            if self._at >= self._file.size:
                self.is_over = True
                last = b"".join(self._rest)
                return [last] if last else []
            data = await self._files.slice(self._file.object, self._at, self._file.size)
            self._at += len(data)
            if b"\n" not in data:
                self._keep(data)
                continue
            whole = b"".join((*self._rest, data))
            lines, rest = await in_thread(whole_lines, whole)
            self._rest, self._rest_bytes = [], 0
            self._keep(rest)
            return lines
        return []

    def _keep(self, data: bytes) -> None:
        self._rest.append(data)
        self._rest_bytes += len(data)


class PartReader:
    """The requests of one part, each with its place in it."""

    def __init__(self, slices: Slices, *, done: bytes) -> None:
        """`done`: a byte for each request, 1 for those to pass over."""
        self._slices = slices
        self._done = done
        self._next = 0

    @property
    def is_over(self) -> bool:
        """Whether no request is left."""
        return self._next >= len(self._done) or self._slices.is_over

    async def next(self) -> list[tuple[int, Line]]:
        """Some more of them; there may be none although there are more. Raises FilesError."""
        if self.is_over:
            return []
        lines = await self._slices.next()
        requests = await in_thread(_parsed, lines, len(self._done) - self._next)
        first = self._next
        self._next += len(requests)
        return [
            (index, line)
            for index, line in enumerate(requests, first)
            if not self._done[index]
        ]  # fmt: skip


def _parsed(lines: list[bytes], most: int) -> list[Line]:
    return [line for line, _ in zip(requests_in(lines), range(most), strict=False)]
