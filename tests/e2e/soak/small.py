"""Small requests at a steady rate, whatever becomes of the earlier ones, and how long each took."""

import asyncio
import json
from time import monotonic

from gateway.bench.replies import MODEL

RATE_PER_S = 50
ANSWER_S_MAX = 30.0
BODY = json.dumps(
    {"model": MODEL, "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8}
).encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n" % len(BODY)
) + BODY


class Connections:
    """Kept-alive connections to the gateway, made as they are needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask_s(self) -> float:
        """Seconds from the request to the last byte of its answer, which must be a 200."""
        reader, writer = await self._connection()
        began_at = monotonic()
        writer.write(REQUEST)
        async with asyncio.timeout(ANSWER_S_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(_length(head))
        took_s = monotonic() - began_at
        self._idle.append((reader, writer))
        return took_s

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """An idle one that the gateway has not closed meanwhile, else a new one."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        """Close those that are idle."""
        for _, writer in self._idle:
            writer.close()


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0])


async def steady(connections: Connections, seconds: float) -> list[float]:
    """The times of `RATE_PER_S` requests a second, each sent when it is due."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    tasks = []
    for number in range(round(seconds * RATE_PER_S)):
        await asyncio.sleep(began_at + number / RATE_PER_S - loop.time())
        tasks.append(asyncio.ensure_future(connections.ask_s()))
    return await asyncio.gather(*tasks)
