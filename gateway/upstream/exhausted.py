"""Whether it is this process that ran out of something, and not the other side that failed."""

import errno

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
CAUSES_MAX = 16


def is_exhausted(error: BaseException | None) -> bool:
    """Whether an error, or anything that led to it, is want of files or memory of our own."""
    seen = 0
    while error is not None and seen < CAUSES_MAX:
        if isinstance(error, BaseExceptionGroup):
            return any(is_exhausted(one) for one in error.exceptions)
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False
