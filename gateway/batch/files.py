"""Where bytes of batches lie: a folder, or whatever else fsspec reaches, like a bucket of S3.

What bytes mean, and which of them are needed, is not known here. An object is written once under
a name of its own; only in a folder can it grow. All work is done in threads.
"""

import errno
import logging
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gateway.api.threads import in_thread_of
from gateway.errors import StorageFullError

LOGGER = logging.getLogger("fairgate.batch")
SLICE_BYTES = 256 << 10
"""What is read or written in one step."""
BLOCK_BYTES = 8 << 20
"""What is held of an object before it is sent to a bucket, which wants at least 5 MiB at once."""
THREADS_MAX = 16
"""Of their own: a storage that does not answer holds up nobody else."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
FOLDER_MODE = 0o700


class FilesError(Exception):
    """The files cannot be read or written now, and why, in one line."""

    def __init__(self, told: str, detail: str) -> None:
        """`told`: what users may know; `detail`, with paths and a bucket's words, is for logs."""
        self.told = told
        super().__init__(f"{told}: {detail}")


class System(Protocol):
    """Of fsspec, what is needed here."""

    def open(self, path: str, mode: str, block_size: int | None = None) -> Any:
        """A file object."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Bytes of a file."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder with those above it."""

    def find(self, path: str, *, detail: bool = False) -> Any:
        """All files below a folder."""

    def rm_file(self, path: str) -> None:
        """Remove a file."""


class Files:
    """Objects by name, below one folder of one file system."""

    def __init__(self, system: System, root: str, *, grows: bool) -> None:
        """`grows`: whether bytes can be added to an object, and synced to a disk."""
        self._system = system
        self._root = root.rstrip("/")
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="files")
        self.grows = grows

    async def open(self) -> None:
        """See that the folder is there. Raises FilesError."""
        await self._do(self._open)

    def close(self) -> None:
        """Begin nothing more. What a storage does not answer to is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def slice(self, name: str, at: int, size: int) -> bytes:
        """The next bytes from `at` on of an object that has `size`, which is more.

        Raises FilesError, where there are none too.
        """
        data: bytes = await self._do(self._read, name, at, min(size, at + SLICE_BYTES))
        if not data:
            raise FilesError("an object is cut", f"{name} has {at} bytes of {size}")
        return data

    async def slices(self, name: str, size: int) -> AsyncIterator[bytes]:
        """The first `size` bytes, in slices. Raises FilesError, where there are fewer too."""
        at = 0
        while at < size:
            data = await self.slice(name, at, size)
            at += len(data)
            yield data

    def writer(self, name: str) -> "Writer":
        """Something to write a new object with."""
        return Writer(self, name)

    async def remove(self, name: str) -> None:
        """Remove an object, if it is there. Raises FilesError."""
        await self._do(self._remove, name)

    async def names(self, *, older_than_s: float) -> list[str]:
        """Objects that were not written for so long. Raises FilesError."""
        names: list[str] = await self._do(self._names, older_than_s)
        return names

    async def _do(self, work: Any, *args: Any) -> Any:
        try:
            return await in_thread_of(self._threads, partial(work, *args))
        except FileNotFoundError as error:
            raise FilesError("the storage is not there", str(error)) from error
        except PermissionError as error:
            raise FilesError("the storage refuses", str(error)) from error
        except OSError as error:
            if error.errno in FULL:
                raise FilesError("the storage is full", str(error)) from error
            raise FilesError("the storage cannot be used", str(error)) from error
        except FilesError:
            raise
        except Exception as error:
            # Each file system of fsspec has errors of its own: botocore's where S3 is not there.
            text = " ".join(str(error).split())[:300]
            detail = f"{type(error).__name__}: {text}"
            raise FilesError("the storage cannot be used", detail) from error

    def _open(self) -> None:
        # A bucket must be there: whoever may write to it may not always make one.
        if self.grows:
            self._system.makedirs(self._root, exist_ok=True)
            os.chmod(self._root, FOLDER_MODE)

    def _sync_folder(self) -> None:
        """So that the names in it, too, outlive a loss of power."""
        folder = os.open(self._root, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _read(self, name: str, start: int, end: int) -> bytes:
        try:
            return self._system.cat_file(self._path(name), start=start, end=end)
        except FileNotFoundError as error:
            raise FilesError("an object is missing", str(error)) from error

    def _remove(self, name: str) -> None:
        try:
            self._system.rm_file(self._path(name))
        except FileNotFoundError:
            return

    def _names(self, older_than_s: float) -> list[str]:
        found = self._system.find(self._root, detail=True)
        now, names = time.time(), []
        for path, about in found.items():
            written = about.get("mtime") or about.get("LastModified")
            at = written if isinstance(written, int | float) else written and written.timestamp()
            if at is not None and now - at > older_than_s:
                names.append(str(path).removeprefix(self._root).lstrip("/"))
        return names


class Writer:
    """Writes one object from its beginning; it is there for others once `close` has returned.

    Where objects grow, what `sync` has returned for is there already.
    """

    def __init__(self, files: Files, name: str) -> None:
        self._files = files
        self.name = name
        self._file: Any = None
        self._is_named = False
        """Whether its name is on the disk."""
        self.size = 0
        """Bytes that are there."""

    async def write(self, data: bytes) -> None:
        """Add bytes. Raises FilesError; then nothing was added."""
        await self._files._do(self._write, data)
        self.size += len(data)

    async def sync(self) -> None:
        """On the disk now. Raises FilesError."""
        if self._files.grows:
            await self._files._do(self._sync)

    async def close(self) -> None:
        """It is whole, and on the disk. Raises FilesError."""
        await self._files._do(self._close)

    async def abandon(self) -> None:
        """It is not wanted."""
        await self._files._do(self._abandon)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            block = None if self._files.grows else BLOCK_BYTES
            path = self._files._path(self.name)
            self._file = self._files._system.open(path, "wb", block_size=block)
        if not self._files.grows:
            self._file.write(data)
            return
        # What a failed attempt left behind is written over.
        self._file.seek(self.size)
        self._file.write(data)
        self._file.flush()

    def _sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            if not self._is_named:
                self._files._sync_folder()
                self._is_named = True

    def _close(self) -> None:
        if self._file is None:
            self._write(b"")
        if self._files.grows:
            self._file.truncate(self.size)
            os.fsync(self._file.fileno())
        self._file.close()
        if self._files.grows:
            self._files._sync_folder()

    def _abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None and self._files.grows:
            with suppress(OSError):  # what is left to be written finds no room
                file.close()
        elif file is not None:
            file.discard()
            with suppress(AttributeError):
                file.closed = True  # else it would send what it holds when it is let go
        self._files._remove(self.name)


def files_at(url: str) -> Files:
    """The files at a folder, or at a URL that fsspec knows. Raises ValueError.

    Credentials and addresses of a bucket are fsspec's affair: see docs/batch.md.
    """
    try:
        if url.startswith(("s3://", "s3a://")):
            # fsspec would load s3fs by name; here its lack is told in words that help.
            from gateway.batch.s3 import bucket_at  # noqa: PLC0415 - see above

            system, root = bucket_at(url)
        else:
            system, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        hint = "; pip install 'fairgate[s3]' brings what buckets need"
        more = hint if isinstance(error, ImportError) else ""
        raise ValueError(f"batches.files cannot be used: {error}{more}") from None
    grows = isinstance(system, LocalFileSystem)
    return Files(cast(System, system), root, grows=grows)


def full(error: FilesError) -> StorageFullError:
    """What a client is told; the log says all of it."""
    LOGGER.error("files of batches: %s", error)
    return StorageFullError(f"The files of batches cannot be used now: {error.told}.")
