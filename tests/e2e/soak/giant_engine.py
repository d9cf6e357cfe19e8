"""An engine that swallows bodies of any size, and answers little or enormously much.

What it answers is chosen by the model that is asked for. One process:
`python -m tests.e2e.soak.giant_engine --port N`.
"""

import argparse
import asyncio
import json
from typing import NamedTuple

from gateway.bench import replies

GIANT, ERROR_PLAIN, ERROR_CHUNKED, ERROR_EVENT, FAILURE = MODELS = (
    "giant", "error-plain", "error-chunked", "error-event", "failure",
)  # fmt: skip
CONTEXT_TOKENS = 16_000_000
ERROR_BYTES = 114_000_000
PIECE = b"x" * 1_000_000
USAGE = {"prompt_tokens": 1_500_000, "completion_tokens": 1, "total_tokens": 1_500_001}
HEAD_BYTES = 512
"""Tests name model and stream in the first members."""


class Asked(NamedTuple):
    """One request, as far as it matters here."""

    path: bytes
    head: bytes
    """The beginning of its body."""
    length: int


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection of the gateway."""
    try:
        while True:
            await _answer(await _asked(reader), writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()


async def _asked(reader: asyncio.StreamReader) -> Asked:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    left, beginning = length, b""
    while left:
        data = await reader.read(min(left, 1 << 20))
        if not data:
            raise ConnectionError
        left -= len(data)
        if len(beginning) < HEAD_BYTES:
            beginning += data[:HEAD_BYTES]
    return Asked(head.split(b" ")[1], beginning, length)


async def _answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
    if not asked.length:
        writer.write(_get(asked.path))
    elif ERROR_CHUNKED.encode() in asked.head:
        await _send_error(writer, status=b"400 Bad Request", is_chunked=True)
    elif ERROR_PLAIN.encode() in asked.head:
        await _send_error(writer, status=b"400 Bad Request", is_chunked=False)
    elif FAILURE.encode() in asked.head:
        await _send_error(writer, status=b"500 Internal Server Error", is_chunked=False)
    elif ERROR_EVENT.encode() in asked.head:
        await _send_error_event(writer)
    elif b'"stream": true' in asked.head or b'"stream":true' in asked.head:
        chunk = {"object": "chat.completion.chunk", "choices": [], "usage": USAGE}
        choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}
        said = {**chunk, "choices": [choice], "usage": None}
        events = [b"data: %b\n\n" % json.dumps(each).encode() for each in (said, chunk)]
        writer.write(replies.STREAM_HEAD + b"".join(map(replies.chunk, events)))
        writer.write(replies.DONE + replies.LAST_CHUNK)
    else:
        choices = [{"index": 0, "text": "x", "finish_reason": "length"}]
        told = {"object": "text_completion", "choices": choices, "usage": USAGE}
        writer.write(replies.plain(json.dumps(told)))
    await writer.drain()


async def _send_error(writer: asyncio.StreamWriter, *, status: bytes, is_chunked: bool) -> None:
    before, after = b'{"error":{"code":400,"type":"BadRequestError","message":"', b'"}}'
    size = len(before) + ERROR_BYTES + len(after)
    framing = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % size
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%b\r\n\r\n" % (status, framing)
    writer.write(head + (replies.chunk(before) if is_chunked else before))
    for _ in range(ERROR_BYTES // len(PIECE)):
        writer.write(replies.chunk(PIECE) if is_chunked else PIECE)
        await writer.drain()
    writer.write(replies.chunk(after) + replies.LAST_CHUNK if is_chunked else after)


async def _send_error_event(writer: asyncio.StreamWriter) -> None:
    writer.write(replies.STREAM_HEAD + replies.chunk(b'data: {"error":{"code":400,"message":"'))
    for _ in range(ERROR_BYTES // len(PIECE)):
        writer.write(replies.chunk(PIECE))
        await writer.drain()
    writer.write(replies.chunk(b'"}}\n\n') + replies.DONE + replies.LAST_CHUNK)


def _get(path: bytes) -> bytes:
    if path == b"/v1/models":
        cards = [
            {"id": name, "object": "model", "max_model_len": CONTEXT_TOKENS} for name in MODELS
        ]
        return replies.plain(json.dumps({"object": "list", "data": cards}))
    if path == b"/metrics":
        return replies.metrics(running=0, tokens=0, itl=(0, 0.0), ttft=(0, 0.0))
    if path == b"/version":
        return replies.VERSION
    return replies.HEALTHY


async def listen(port: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    """Run one engine until it is told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(listen(parser.parse_args().port))


if __name__ == "__main__":
    main()
