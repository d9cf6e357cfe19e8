"""Reading an answer that is not passed on piece by piece: never more of it than is wanted."""

from gateway.upstream.connection import Answer

ERROR_BODY_BYTES_MAX = 64 << 10
"""No more of an engine's error is read."""


async def beginning_of(answer: Answer, bytes_max: int) -> bytes:
    """The whole body; or, as soon as it is longer than `bytes_max`, what of it has come.

    Raises UpstreamBrokenError.
    """
    chunks, size = [], 0
    while size <= bytes_max and (data := await answer.read()):
        chunks.append(data)
        size += len(data)
        if answer.is_complete and not answer.has_data:
            break
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def error_body_of(answer: Answer) -> bytes:
    """The beginning of an error's body. Raises UpstreamBrokenError."""
    return (await beginning_of(answer, ERROR_BODY_BYTES_MAX))[:ERROR_BODY_BYTES_MAX]
