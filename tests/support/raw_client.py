"""A client that writes its requests byte for byte: what no well-behaved library would send."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """What came back until the server closed."""

    status: int
    head: bytes
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which must be JSON."""
        return json.loads(self.body)


async def exchange(url: str, request: bytes) -> RawAnswer:
    """Send `request`, read to the end; the request must make the server close."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return RawAnswer(int(head.split(b" ")[1]), head, body)


def request(
    target: str,
    *lines: str,
    method: str = "POST",
    host: str = "gateway",
    body: bytes = b'{"model":"emulated","messages":[{"role":"user","content":"x"}],"max_tokens":1}',
) -> bytes:
    """A request for `target` with these header lines."""
    head = [
        f"{method} {target} HTTP/1.1", f"host: {host}", "connection: close",
        "content-type: application/json", f"content-length: {len(body)}", *lines,
    ]  # fmt: skip
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body
