"""Reading what an engine says when it does not do what it was asked."""

from gateway.upstream.connection import Answer

ERROR_BODY_BYTES_MAX = 64 << 10
"""No more of an engine's error is read."""


async def error_body_of(answer: Answer) -> bytes:
    """The beginning of an error's body. Raises UpstreamBrokenError."""
    chunks, size = [], 0
    while size < ERROR_BODY_BYTES_MAX and (data := await answer.read()):
        chunks.append(data)
        size += len(data)
    return b"".join(chunks)[:ERROR_BODY_BYTES_MAX]
