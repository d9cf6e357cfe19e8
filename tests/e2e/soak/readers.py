"""Clients that read a thousand bytes a second, and how each of their streams ended.

One process for all of them: `python -m tests.e2e.soak.readers --port N --readers N --seconds S`
prints one JSON object at its end.
"""

import argparse
import asyncio
import json
import random
import socket
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic

from gateway.bench.replies import EVENT_BYTES, MODEL

BYTES_PER_S = 1_000
RECEIVE_BYTES = 4_096
"""Of a client's socket, so that what it does not read stands in the gateway."""
STARTS_WITHIN_S = 10.0
EVENTS_MIN, EVENTS_MAX = 150, 900
"""Half a minute to three and a half minutes of reading."""
GIANT_EVERY = 20
"""Of so many readers one asks for more than it can ever read."""
GIANT_EVENTS = 40_000
"""Nine megabytes: more than the kernel and the gateway hold for one client."""
END = b"data: [DONE]\n\n"
TAIL_BYTES = 256


@dataclass(slots=True)
class Seen:
    """How the streams of all readers ended."""

    ends: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0


async def read_streams(port: int, *, seconds: float, seed: int, seen: Seen) -> None:
    """One stream after the other until the time is over; the last one is left."""
    chance, is_giant = random.Random(seed), seed % GIANT_EVERY == 0
    until = monotonic() + seconds
    await asyncio.sleep(chance.random() * STARTS_WITHIN_S)
    while monotonic() < until:
        events = GIANT_EVENTS if is_giant else chance.randint(EVENTS_MIN, EVENTS_MAX)
        end = await _read_one(port, events, until=until, user=f"u{seed}", seen=seen)
        seen.ends[f"{'giant ' if is_giant else ''}{end}"] += 1


async def _read_one(port: int, events: int, *, until: float, user: str, seen: Seen) -> str:
    loop = asyncio.get_running_loop()
    asked = {"model": MODEL, "messages": [], "stream": True, "max_tokens": events, "user": user}
    body = json.dumps(asked).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        client.setblocking(False)
        tail, count = b"", 0
        try:
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, head.encode() + body)
            while monotonic() < until:
                piece = await loop.sock_recv(client, BYTES_PER_S)
                if not piece:
                    return _end(tail, count, events)
                seen.read_bytes += len(piece)
                tail = (tail + piece)[-TAIL_BYTES:]
                count += len(piece)
                await asyncio.sleep(len(piece) / BYTES_PER_S)
        except ConnectionError:
            return "reset"
    return "left"


def _end(tail: bytes, count: int, events: int) -> str:
    """What the last bytes say."""
    if END in tail and b'"error"' not in tail and count > events * EVENT_BYTES:
        return "complete"
    if b'"error"' in tail:
        return "error event"
    return "cut"


async def read_all(port: int, *, readers: int, seconds: float) -> Seen:
    """All readers at once."""
    seen = Seen()
    async with asyncio.TaskGroup() as tasks:
        for number in range(readers):
            tasks.create_task(read_streams(port, seconds=seconds, seed=number, seen=seen))
    return seen


def main() -> None:
    """Read until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--readers", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    chosen = parser.parse_args()
    seen = asyncio.run(read_all(chosen.port, readers=chosen.readers, seconds=chosen.seconds))
    print(json.dumps({"ends": seen.ends, "read_bytes": seen.read_bytes}))  # noqa: T201 - its result


if __name__ == "__main__":
    main()
