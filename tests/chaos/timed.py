"""Streams whose first word is timed, sent at a steady rate whatever becomes of the earlier ones."""

import asyncio
import json
import random
from dataclasses import dataclass
from time import monotonic

ANSWER_S_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How one request went."""

    tier: str
    status: int
    retry_after: bool
    ttft_s: float | None
    tpot_s: float | None
    is_complete: bool
    is_error: bool
    """Whether it was told that it failed: by its status, or by one event of a stream that had begun
    while it waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A kind of request, and how often it comes."""

    tier: str
    per_s: float
    users: int
    tokens: int


async def timed(port: int, stream: Stream, user: str) -> Timing:
    """Ask once."""
    body = json.dumps(
        {
            "model": "emulated",
            "messages": [{"role": "user", "content": "Why?"}],
            "max_tokens": stream.tokens,
            "stream": True,
            "user": user,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-fairgate-tier: {stream.tier}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began_at, first_at, raw = monotonic(), None, b""
    try:
        writer.write(head.encode() + body)
        async with asyncio.timeout(ANSWER_S_MAX):
            while piece := await reader.read(1 << 16):
                raw += piece
                if first_at is None and b'data: {"id"' in raw:
                    first_at = monotonic()
    finally:
        writer.close()
    status = int(raw.split(b" ", 2)[1]) if raw else 0
    has_begun = status == 200 and first_at is not None
    return Timing(
        tier=stream.tier,
        status=status,
        retry_after=b"\r\nretry-after:" in raw.lower(),
        ttft_s=first_at - began_at if has_begun and first_at is not None else None,
        tpot_s=(monotonic() - first_at) / (stream.tokens - 1)
        if has_begun and first_at is not None
        else None,
        is_error=status != 200 or raw.count(b'data: {"error"') == 1,
        is_complete=has_begun and b"data: [DONE]" in raw and b'{"error"' not in raw,
    )


async def offered(port: int, streams: list[Stream], seconds: float, seed: int) -> list[Timing]:
    """All of them for so long; arrivals are Poisson's."""
    asking: list[asyncio.Task[Timing]] = []
    async with asyncio.TaskGroup() as tasks:

        async def offer(stream: Stream) -> None:
            chance, until = random.Random(f"{seed}{stream.tier}"), monotonic() + seconds
            while (pause_s := chance.expovariate(stream.per_s)) and monotonic() < until:
                await asyncio.sleep(pause_s)
                user = f"{stream.tier}{chance.randrange(stream.users)}"
                asking.append(tasks.create_task(timed(port, stream, user)))

        for stream in streams:
            tasks.create_task(offer(stream))
    return [each.result() for each in asking]
