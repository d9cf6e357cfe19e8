"""Reading what of an answer is not passed on piece by piece: never more of it than is wanted."""

import re

from gateway.api.openai import EngineError, engine_error
from gateway.upstream.connection import Answer, UpstreamBrokenError
from gateway.upstream.sse import StreamMeter

ERROR_BODY_BYTES_MAX = 64 << 10
"""No more of an engine's error is read."""
FIRST_EVENT_BYTES_MAX = 1 << 20
"""A stream is passed on once so much of it has come, be its first event complete or not."""

_LARGE_ERROR = re.compile(rb'(?:event: error\s+)?data:\s*\{\s*"(?:error|type"\s*:\s*"error)"')


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


async def first_event_of(
    answer: Answer, meter: StreamMeter, *, is_kept: bool = False
) -> tuple[bytes, EngineError | None]:
    """All bytes up to the first data event: only it shows that the engine began.

    `is_kept`: the engine will finish whatever it announces, so that is a beginning.

    Raises UpstreamBrokenError for a stream without any.
    """
    chunks, size = [], 0
    while answer.has_data or not (
        meter.events or meter.error_event or meter.is_done or (is_kept and meter.ident)
    ):
        data = await answer.read()
        if not data:
            break
        chunks.append(data)
        size += len(data)
        if size > FIRST_EVENT_BYTES_MAX and not meter.events:
            return _large_first(b"".join(chunks))
    if meter.error_event is not None and not meter.events:
        return b"", engine_error(200, meter.error_event)
    if not (meter.events or meter.is_done or (is_kept and meter.ident)):
        raise UpstreamBrokenError("the stream ended before it began", is_fresh=False)
    return b"".join(chunks), None


def _large_first(first: bytes) -> tuple[bytes, EngineError | None]:
    """The beginning of a stream whose first event is very large; an error is one all the same."""
    if _LARGE_ERROR.match(first):
        return b"", EngineError(500, "an error too long to be passed on")
    return first, None
