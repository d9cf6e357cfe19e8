"""Sending requests to one engine: its connections, kept warm for less than the engine keeps them.

uvicorn, which vLLM runs on, closes idle connections after 5 s; a pool that keeps them longer meets
random resets. How many exchanges run at once is the scheduler's business: the pool has no limit
of its own, so a full pool never looks like a slow engine.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from errno import ECONNREFUSED
from typing import Any, cast
from urllib.parse import urlsplit

from gateway.core.messages import Fault
from gateway.errors import OverloadedError
from gateway.upstream.connection import Answer, Connection, UpstreamBrokenError
from gateway.upstream.exhausted import is_exhausted
from gateway.upstream.pieces import PIECE_BYTES_MAX, Segments, Sendable
from gateway.upstream.replicas import ReplicaAddress
from gateway.upstream.takers import Heard, Meter

IDLE_S_MAX = 4.0
"""Below the 5 s after which uvicorn closes an idle connection."""
CONNECT_TIMEOUT_S = 2.0
IDLE_CONNECTIONS_MAX = 1_024
EXHAUSTED_RETRY_S = 1.0
"""When a client should come back that found the gateway without connections."""


class EngineClient:
    """All exchanges with one replica."""

    def __init__(
        self,
        address: ReplicaAddress,
        *,
        buffer_bytes_max: int,
        clock: Callable[[], float],
    ) -> None:
        parts = urlsplit(address.url)
        self.name = address.name
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/").encode("ascii")
        self._ssl = _tls(address) if parts.scheme == "https" else None
        self.buffer_bytes_max = buffer_bytes_max
        self._clock = clock
        self._idle: deque[Connection] = deque()
        self._is_closed = False
        self._heard = Heard()
        self._head = _constant_head(parts.netloc.rpartition("@")[2], address.api_key)

    def follow(self, other: "EngineClient") -> None:
        """It takes the place of `other`, whose exchanges go on and are signs of life as before."""
        self._heard = other._heard

    @property
    def heard_at(self) -> float | None:
        """When bytes of any answer last arrived: a sign of life that needs no question."""
        return self._heard.at

    async def send(
        self,
        path: bytes,
        body: bytes | Sendable = b"",
        *,
        headers: bytes = b"",
        meter: Meter,
        method: bytes = b"POST",
    ) -> Answer:
        """Send `body` and wait for status and headers.

        `headers` are whole lines, each ended by CRLF. Raises UpstreamBrokenError; a connection
        that the engine closed while it was idle is replaced once, unseen. An engine that refuses
        the request before it has all of it is heard, and sent no more. A GET has no body.
        """
        rest: Sendable | None = None
        if not isinstance(body, bytes):
            rest, size, body = body, body.length, b""
        elif (size := len(body)) > PIECE_BYTES_MAX:
            rest, body = Segments((body,)), b""
        length = b"" if method == b"GET" else b"content-length: %d\r\n" % size
        request = b"".join(
            (
                method, b" ", self._prefix, path, b" HTTP/1.1\r\n", self._head, headers, length,
                b"\r\n", body,
            )
        )  # fmt: skip
        connection = self._take_idle()
        is_reused = connection is not None
        while True:
            if connection is None:
                connection = await self._connect()
            answer = connection.begin(request, meter)
            try:
                if rest is not None:
                    await connection.send_rest(rest.pieces())
                await answer.head()
            except UpstreamBrokenError as error:
                answer.close()
                if not is_reused or not error.is_fresh:
                    raise
            except BaseException:
                answer.close()
                raise
            else:
                return answer
            connection, is_reused = None, False

    def close(self) -> None:
        """Close what is idle; what runs goes on to its end."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().abort()

    def _take_idle(self) -> Connection | None:
        horizon = self._clock() - IDLE_S_MAX
        while self._idle:
            connection = self._idle.pop()
            if connection.is_closed:
                continue
            if connection.idle_since >= horizon:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        """A new connection. Raises OverloadedError where it is this process that has no room."""
        try:
            return await self._connected()
        except UpstreamBrokenError as error:
            if not is_exhausted(error):
                raise
        while self._idle:
            self._idle.pop().abort()
        await asyncio.sleep(0)  # an aborted socket is closed in the next turn of the loop
        try:
            return await self._connected()
        except UpstreamBrokenError as error:
            if is_exhausted(error):
                text = "The gateway has no connections left for engines."
                raise OverloadedError(text, retry_after_s=EXHAUSTED_RETRY_S) from error
            raise

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    self._new_connection, self._host, self._port, ssl=self._ssl
                )
        except TimeoutError as late:
            raise UpstreamBrokenError(
                "connecting timed out", is_fresh=True, fault=Fault.CONNECT
            ) from late
        except RuntimeError as fault:  # names are looked up in threads, of which none was left
            text = "The gateway has no threads left."
            raise OverloadedError(text, retry_after_s=EXHAUSTED_RETRY_S) from fault
        except OSError as error:
            raise UpstreamBrokenError(
                f"cannot connect: {error}", is_fresh=True, fault=_fault_of(error)
            ) from error
        return cast(Connection, connection)

    def _new_connection(self) -> Any:
        return Connection(
            buffer_bytes_max=self.buffer_bytes_max,
            on_idle=self._rested,
            heard=self._heard,
            clock=self._clock,
        )

    def _rested(self, connection: Connection, is_alive: bool) -> None:
        if not is_alive:
            return
        if self._is_closed or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            connection.abort()
            return
        connection.idle_since = self._clock()
        self._idle.append(connection)


def _fault_of(error: OSError) -> Fault:
    """Refused is only what every address of the name refused; of several the text alone tells."""
    tried = str(error).count("[Errno ")
    is_refused = tried and str(error).count(f"[Errno {ECONNREFUSED}]") == tried
    return Fault.REFUSED if is_refused else Fault.CONNECT


def _constant_head(host: str, api_key: str | None) -> bytes:
    lines = [
        f"host: {host}",
        "user-agent: fairgate",
        "accept-encoding: identity",  # a compressed event stream would arrive in bursts
    ]
    if api_key:
        lines.append(f"authorization: Bearer {api_key}")
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def _tls(address: ReplicaAddress) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=address.ca_file)
