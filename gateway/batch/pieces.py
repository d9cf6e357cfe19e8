"""What one part of a batch has put out so far: bytes that grow, and how many of them count.

Bytes are on the disk before the store is told of them, and count from then on. What a gateway left
behind that was killed in between is never read: whoever goes on writes to names of its own.
"""

from gateway.batch.files import Files, Writer
from gateway.batch.store import Piece


class Growing:
    """Bytes of output of one part, written under one lease."""

    def __init__(self, files: Files, name: str, *, is_errors: bool) -> None:
        """`name` must be nobody else's: it has the number of the lease in it."""
        self._files = files
        self._name = name
        self._is_errors = is_errors
        self._writer: Writer | None = None
        self._kept = 0
        """Bytes that count."""
        self._puts = 0

    async def put(self, data: bytes) -> Piece:
        """Bytes behind those that count, on the disk when it returns. Raises FilesError."""
        if not self._files.grows:
            return await self._put_apart(data)
        if self._writer is None:
            self._writer = self._files.writer(self._name)
        writer = self._writer
        writer.size = self._kept  # over what was put, and did not come to count
        await writer.write(data)
        await writer.sync()
        return Piece(object=self._name, size=writer.size, is_errors=self._is_errors)

    def confirm(self, piece: Piece) -> None:
        """The store knows of it."""
        self._kept = piece.size

    async def close(self) -> None:
        """Nothing comes any more. Raises FilesError, and what counts is there all the same."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.size = self._kept
            await writer.close()

    async def _put_apart(self, data: bytes) -> Piece:
        """An object of its own: those of a bucket do not grow."""
        self._puts += 1
        writer = self._files.writer(f"{self._name}.{self._puts:06d}")
        await writer.write(data)
        await writer.close()
        return Piece(object=writer.name, size=len(data), is_errors=self._is_errors)
