"""Clients of every manner, on sockets of their own, and what each of them has seen.

They read HTTP themselves: what is wrong with an answer must not be repaired by a library.
"""

import asyncio
import json
import socket
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.chaos.schedule import Client

RECEIVE_BYTES = 4_096
"""Of the socket of those who read slowly or never."""
SLOW_BYTES, SLOW_PAUSE_S = 2_048, 0.02
READ_BYTES = 1 << 16

End = Literal["whole", "cut", "left"]


@dataclass(slots=True)
class Seen:
    """What came to one client."""

    client: Client
    end: End = "left"
    """`whole`: a complete HTTP answer; `cut`: the connection ended before; `left`: it hung up."""
    raw: bytes = b""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def request_id(self) -> str | None:
        """The gateway's."""
        return self.headers.get("x-request-id")

    @property
    def is_stream(self) -> bool:
        """Whether the answer is one."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


def path_of(client: Client) -> str:
    """Where it asks."""
    return "/v1/chat/completions" if client.is_chat else "/v1/completions"


def body_of(client: Client) -> dict[str, Any]:
    """What it asks for; greedy, so that there is one right answer."""
    said: dict[str, Any] = {"prompt": client.words}
    if client.is_chat:
        said = {"messages": [{"role": "user", "content": client.words}]}
    body = {"model": "emulated", **said, "max_tokens": client.max_tokens, "temperature": 0}
    if client.streams:
        body["stream"] = True
        if client.tells_usage:
            body["stream_options"] = {"include_usage": True}
    return body


def request_of(client: Client, **more: object) -> bytes:
    """The bytes that it sends."""
    body = json.dumps({**body_of(client), "user": client.user, **more}).encode()
    head = (
        f"POST {path_of(client)} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-fairgate-tier: {client.tier}\r\n\r\n"
    )
    return head.encode() + body


async def ask(port: int, client: Client, over: asyncio.Event) -> Seen:
    """Send its request and see what comes; when `over` is set it leaves, whatever it wants."""
    loop = asyncio.get_running_loop()
    seen = Seen(client)
    with socket.socket() as raw:
        if client.manner in ("slow", "never"):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        raw.setblocking(False)
        await loop.sock_connect(raw, ("127.0.0.1", port))
        await loop.sock_sendall(raw, request_of(client))
        reading = asyncio.ensure_future(_behave(raw, seen))
        leaving = asyncio.ensure_future(over.wait())
        try:
            await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, leaving):
                task.cancel()
            await asyncio.wait((reading, leaving))
    return seen


async def _behave(raw: socket.socket, seen: Seen) -> None:
    client = seen.client
    match client.manner:
        case "leaves":
            await asyncio.sleep(client.leaves_after_s)
        case "never":
            await asyncio.Event().wait()
        case "reads":
            await _read(raw, seen, READ_BYTES, 0.0)
        case "slow":
            await _read(raw, seen, SLOW_BYTES, SLOW_PAUSE_S)


async def _read(raw: socket.socket, seen: Seen, size: int, pause_s: float) -> None:
    loop = asyncio.get_running_loop()
    try:
        while piece := await loop.sock_recv(raw, size):
            seen.raw += piece
            if pause_s:
                await asyncio.sleep(pause_s)
    except ConnectionError:
        seen.end = "cut"
    else:
        seen.end = "whole"
    if not parsed(seen):
        seen.end = "cut"


def parsed(seen: Seen) -> bool:
    """Take the answer apart; whether it is complete."""
    head, found, rest = seen.raw.partition(b"\r\n\r\n")
    if not found:
        return False
    first, *lines = head.decode("latin-1").split("\r\n")
    seen.status = int(first.split()[1])
    for line in lines:
        name, _, value = line.partition(":")
        seen.headers[name.lower()] = value.strip()
    if seen.headers.get("transfer-encoding") != "chunked":
        seen.body = rest
        return len(rest) == int(seen.headers["content-length"])
    return _dechunked(seen, rest)


def _dechunked(seen: Seen, rest: bytes) -> bool:
    while True:
        size_text, found, rest = rest.partition(b"\r\n")
        if not found:
            return False
        size = int(size_text, 16)
        seen.body += rest[:size]
        if size == 0:
            return rest == b"\r\n"
        if rest[size : size + 2] != b"\r\n":
            return False
        rest = rest[size + 2 :]
