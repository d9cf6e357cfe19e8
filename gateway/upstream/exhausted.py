"""Whether it is this process that ran out of something, and not the other side that failed."""

import errno
import os
import socket

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
CAUSES_MAX = 16


def is_exhausted(error: BaseException | None) -> bool:
    """Whether an error, or anything that led to it, is want of files or memory of our own."""
    seen = 0
    while error is not None and seen < CAUSES_MAX:
        if isinstance(error, BaseExceptionGroup):
            return any(is_exhausted(one) for one in error.exceptions)
        if isinstance(error, OSError) and _is_ours(error):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _is_ours(error: OSError) -> bool:
    if error.errno in EXHAUSTED:
        return True
    # A name, or a folder for temporary files, that is not found may be so for want of files.
    return isinstance(error, socket.gaierror | FileNotFoundError) and not _can_open()


def _can_open() -> bool:
    """Whether a file can be opened at all."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
