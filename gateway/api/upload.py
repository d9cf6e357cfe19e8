"""A multipart body that waits to be sent, in memory or in a file, and can be sent again.

What is in it was found out by whoever read it; here it is bytes, and the place of the model's name.
"""

import logging
import tempfile
import threading
from collections.abc import AsyncGenerator
from io import FileIO

from gateway.api.threads import EXHAUSTED_RETRY_S, in_thread
from gateway.errors import GatewayError, OverloadedError, StorageFullError
from gateway.upstream.exhausted import is_exhausted
from gateway.upstream.pieces import PIECE_BYTES_MAX

LOGGER = logging.getLogger("fairgate.relay")

FORM_MEMORY_BYTES = 1 << 20
"""Of each form; what is more lies in a temporary file without a name."""
STORAGE_RETRY_S = 5.0
"""When a client should come back whose upload found no room: others end, and give theirs back."""


class Spool:
    """Bytes that come piece by piece and are read from anywhere; files are touched in threads."""

    __slots__ = ("_file", "_lock", "_memory", "_stored_bytes", "is_closed", "length")

    def __init__(self) -> None:
        self._memory = bytearray()
        """What came last, and has not been written to the file."""
        self._stored_bytes = 0
        self._file: FileIO | None = None
        self._lock = threading.Lock()
        """A file must not be closed, and its number used anew, while a thread is at it."""
        self.length = 0
        self.is_closed = False

    async def add(self, data: bytes) -> None:
        """Keep `data`. Raises StorageFullError, and OverloadedError for want of files."""
        self._memory += data
        self.length += len(data)
        if len(self._memory) > FORM_MEMORY_BYTES:
            try:
                await in_thread(self._store)
            except OSError as error:
                raise _told("The upload could not be stored.", error) from error

    async def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`, or fewer where they lie in two places.

        Raises StorageFullError and OverloadedError for a file that cannot be read.
        """
        assert not self.is_closed
        if start >= self._stored_bytes:
            return bytes(self._memory[start - self._stored_bytes : end - self._stored_bytes])
        try:
            return await in_thread(self._stored, start, min(end, self._stored_bytes))
        except OSError as error:
            raise _told("The upload could not be read again.", error) from error

    def close(self) -> None:
        """Forget everything, any number of times."""
        self.is_closed = True
        with self._lock:
            self._memory.clear()
            if self._file is not None:
                self._file.close()

    def _store(self) -> None:
        with self._lock:
            if self.is_closed:
                return
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by close
            self._file.seek(self._stored_bytes)
            rest = bytes(self._memory)
            while rest:
                rest = rest[self._file.write(rest) :]
            self._stored_bytes += len(self._memory)
            self._memory.clear()

    def _stored(self, start: int, end: int) -> bytes:
        with self._lock:
            if self.is_closed or self._file is None:
                raise ValueError("the upload was closed while it was sent")
            self._file.seek(start)
            return self._file.read(end - start)


class Upload:
    """A form as it came; close it when the request is over, whatever became of it."""

    __slots__ = ("_model_end", "_model_start", "_spool", "content_type", "file_bytes")

    def __init__(
        self, spool: Spool, *, content_type: bytes, model_at: tuple[int, int], file_bytes: int
    ) -> None:
        """`model_at`: where the value of the field `model` lies; empty where there is none."""
        self._spool = spool
        self._model_start, self._model_end = model_at
        self.content_type = content_type
        """With the boundary, as the client wrote it."""
        self.file_bytes = file_bytes
        """Of all files in it together."""

    @property
    def length(self) -> int:
        """Bytes in all."""
        return self._spool.length

    @property
    def is_closed(self) -> bool:
        """Whether there is nothing left to send."""
        return self._spool.is_closed

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """All bytes in order, from the beginning each time it is called."""
        return self.between(0, self.length)

    async def between(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` to before `end`, piece by piece."""
        while start < end:
            piece = await self._spool.read(start, min(end, start + PIECE_BYTES_MAX))
            start += len(piece)
            yield piece

    def renamed(self, model: str) -> "RenamedUpload":
        """The same form with another model; it is read from this one and not closed by itself."""
        return RenamedUpload(self, model.encode(), (self._model_start, self._model_end))

    def close(self) -> None:
        """Give its memory or its file back; more than once is no harm."""
        self._spool.close()


class RenamedUpload:
    """A form in which the client's name of the model is replaced by the engine's."""

    __slots__ = ("_end", "_model", "_start", "_upload")

    def __init__(self, upload: Upload, model: bytes, at: tuple[int, int]) -> None:
        self._upload = upload
        self._model = model
        self._start, self._end = at
        assert self._end > self._start, "only a name that was found can be replaced"

    @property
    def length(self) -> int:
        """Bytes in all."""
        return self._upload.length - (self._end - self._start) + len(self._model)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """All bytes in order, from the beginning each time it is called."""
        async for piece in self._upload.between(0, self._start):
            yield piece
        yield self._model
        async for piece in self._upload.between(self._end, self._upload.length):
            yield piece


def _told(text: str, error: OSError) -> GatewayError:
    """What the client is told where its upload met an `error` of this machine's."""
    LOGGER.warning("%s %s", text, error)
    if is_exhausted(error):
        return OverloadedError(
            "The gateway has no files left for uploads.", retry_after_s=EXHAUSTED_RETRY_S
        )
    return StorageFullError(text, retry_after_s=STORAGE_RETRY_S)
