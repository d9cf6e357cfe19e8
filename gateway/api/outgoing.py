"""What one engine is sent for one request: an allow-list of headers, and the client's own bytes.

The body differs from the client's only in what the gateway must say itself: the engine's name of
the model, a priority where the engine schedules by one, whose cache it may share, and the wish to
be told the usage.
"""

from gateway.api.auth import Headers
from gateway.api.life import Life
from gateway.api.wire import rewritten
from gateway.upstream.pieces import Sendable

FORWARDED = (b"traceparent", b"tracestate", b"baggage")
"""All headers of a client that an engine may see: W3C's trace context."""
FORWARDED_TRACED = FORWARDED[1:]
"""The same where the request is recorded here: engines are told of our own span instead."""
FORWARDED_BYTES_MAX = 1_024
"""A longer one is dropped: an engine refuses requests for the size of their headers."""


def forwarded(headers: Headers, names: tuple[bytes, ...] = FORWARDED) -> bytes:
    """The header lines of a client that go to the engine."""
    lines = b""
    for name in names:
        value = headers.get(name)
        if value is not None and len(value) <= FORWARDED_BYTES_MAX:
            lines += b"%b: %b\r\n" % (name, value)
    return lines


def header_lines(life: Life, sends: int) -> bytes:
    """The headers that differ between requests; `sends` counts the sendings of this attempt.

    The id is new each time: an engine may still be busy dropping what was taken back from it.
    """
    assert life.call is not None
    upload = life.call.upload
    content_type = b"application/json" if upload is None else upload.content_type
    engine_id = life.attempt_id if sends == 1 else f"{life.attempt_id}-{sends}"
    lines = life.forwarded if life.trace is None else life.forwarded + life.trace.line()
    return b"content-type: %b\r\nx-request-id: %b\r\n%b" % (
        content_type, engine_id.encode("ascii"), lines
    )  # fmt: skip


def body(life: Life, priority: int | None, *, asks_ids: bool = False) -> bytes | Sendable:
    """The body; `priority` in the engine's own polarity, None where it takes none.

    `asks_ids`: the engine is to tell token ids, for which the client did not ask.
    """
    call = life.call
    assert call is not None
    model = None if life.alias is None else life.model
    if call.upload is not None:
        return call.upload if model is None else call.upload.renamed(model)
    salt = None if life.salt is None else life.salt.at(life.replica)
    if model is None and priority is None and salt is None and not (call.asks_usage or asks_ids):
        return call.body
    return rewritten(
        call,
        model=model,
        priority=priority,
        cache_salt=salt,
        asks_usage=call.asks_usage,
        asks_ids=asks_ids,
    )
