"""The client's side of a connection: HTTP/1.1 for an ASGI application, run by uvicorn's server.

uvicorn has a protocol of its own; it costs several times as much a request, writes the headers of
an answer by themselves and tells of a client that left only whoever asks (docs/decisions/0010).
"""

import asyncio
import logging
from collections import deque
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from gateway.api.crowd import SURPLUS_S, ClientConfig, Crowd
from gateway.api.cycle import ClientCycle
from gateway.api.disconnect import Scope
from gateway.api.framing import STATUS_LINES, header_lines
from gateway.api.outflow import Outflow, Pairs

LOGGER = logging.getLogger("fairgate.inbound")
NOT_HTTP = b"Invalid HTTP request received."
QUESTION_MARK: Final = 63
HASH: Final = 35
PERCENT: Final = 37
"""What makes a target more than a plain path; two slashes do as well."""


class ClientConnection:
    """One connection of a client.

    It is an `asyncio.Protocol` in all but name: a subclass could not be compiled whole.
    """

    __slots__ = (
        "_app", "_app_state", "_asgi", "_client", "_crowd", "_cycle", "_headers", "_idle_since",
        "_is_surplus", "_keep_alive_s", "_late_since", "_loop", "_out", "_parser", "_pipeline",
        "_root_path", "_scheme", "_server", "_state", "_surplus", "_timer", "_under_way", "_url",
        "_waits_for_continue",
    )  # fmt: skip

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """As uvicorn's server makes it."""
        if not config.loaded:
            config.load()
        self._app: Any = config.loaded_app
        self._crowd = config.crowd if isinstance(config, ClientConfig) else Crowd()
        self._surplus: Any = config.surplus if isinstance(config, ClientConfig) else self._app
        self._is_surplus = False
        """Whether it ends with its first answer, since it came beyond the bound."""
        self._late_since: float | None = None
        """Since when the server's walk has seen its client in the middle of a body."""
        self._loop = _loop or asyncio.get_event_loop()
        self._state = server_state
        self._app_state = app_state
        self._asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        self._root_path = config.root_path
        self._keep_alive_s = float(config.timeout_keep_alive)
        self._parser: Any = httptools.HttpRequestParser(self)
        # What follows a request that ends the connection must not keep it from being answered.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._out: Outflow | None = None
        self._server: tuple[str, int | None] | None = None
        self._client: tuple[str, int] | None = None
        self._scheme = "http"
        self._url = b""
        self._headers: Pairs = []
        self._waits_for_continue = False
        self._cycle: ClientCycle | None = None
        """The latest request."""
        self._under_way: ClientCycle | None = None
        """The one that is answered."""
        self._pipeline: deque[ClientCycle] = deque()
        """Those that came before the answer to the last one ended."""
        self._timer: asyncio.TimerHandle | None = None
        """One a connection, not one a request: it looks how long nothing has come."""
        self._idle_since = 0.0

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came; beyond the bound it gets one answer, and beyond those nothing."""
        self._state.connections.add(cast(Any, self))
        known = cast(asyncio.Transport, transport)
        self._out = Outflow(known)
        self._server = get_local_addr(known)
        self._client = get_remote_addr(known)
        self._scheme = "https" if is_ssl(known) else "http"
        count, patience_s = len(self._state.connections), self._keep_alive_s
        if self._crowd.is_surplus(count):
            self._crowd.turned_away += 1
            if self._crowd.is_beyond(count):
                self._out.abort()
                return
            self._app, self._is_surplus, patience_s = self._surplus, True, SURPLUS_S
        # Until its first request is there it is idle; then each answer begins that time anew.
        self._idle_since = self._loop.time() + patience_s - self._keep_alive_s
        self._timer = self._loop.call_later(patience_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and with it whatever is done for it."""
        self._state.connections.discard(cast(Any, self))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for cycle in (self._under_way, self._cycle):
            if cycle is not None:
                cycle.left()
        self._pipeline.clear()
        if self._out is not None:
            self._out.drain()
        self._parser = None

    def eof_received(self) -> None:
        """The client sends no more; asyncio closes our side in turn."""

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        assert self._out is not None
        self._out.fill()

    def resume_writing(self) -> None:
        """The client took what it was sent."""
        assert self._out is not None
        self._out.drain()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            LOGGER.debug("an upgrade was asked for and is not offered")
        except httptools.HttpParserError:
            self._refuse()

    # What the server calls.

    def look(self, now: float, body_s: float) -> None:
        """Cut off a client that has been in the middle of a body for so long: once a second."""
        cycle = self._under_way
        if cycle is None or not cycle.more_body or cycle.started or cycle.is_complete:
            self._late_since = None
        elif self._late_since is None:
            self._late_since = now
        elif now - self._late_since > body_s:
            self.abort()

    def abort(self) -> None:
        """End the connection; the client loses what it has not taken."""
        assert self._out is not None
        self._out.abort()

    def shutdown(self) -> None:
        """Close once the answer under way has ended."""
        cycle = self._cycle
        if cycle is None or cycle.is_complete:
            assert self._out is not None
            self._out.close()
        else:
            cycle.keep_alive = False

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Another request."""
        self._url = b""
        self._headers = []
        self._waits_for_continue = False

    def on_url(self, url: bytes) -> None:
        """Some of its target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._waits_for_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The application can begin, unless it is at an earlier request of this connection."""
        assert self._out is not None
        parser, latest = self._parser, self._cycle
        version: str = parser.get_http_version()
        cycle = self._cycle = ClientCycle(
            self._out,
            self._scope(version),
            defaults=self._state.default_headers,
            on_complete=self._answered,
            keep_alive=version != "1.0"
            and parser.should_keep_alive()
            and not (self._is_surplus or self._crowd.is_leaving),
        )
        cycle.waits_for_continue = self._waits_for_continue
        if latest is None or latest.is_complete:
            self._start(cycle)
        else:
            self._out.pause()
            self._pipeline.append(cycle)

    def on_body(self, body: bytes) -> None:
        """Some of its body."""
        cycle = self._cycle
        if cycle is not None and not cycle.is_complete:
            cycle.came(body)

    def on_message_complete(self) -> None:
        """All of it is there."""
        cycle = self._cycle
        if cycle is not None and not cycle.is_complete:
            cycle.ended()

    def _scope(self, version: str) -> Scope:
        path, raw_path, query = _target(self._url)
        return {
            "type": "http",
            "asgi": self._asgi,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": self._parser.get_method().decode("ascii"),
            "root_path": self._root_path,
            "path": self._root_path + path,
            "raw_path": self._root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": self._app_state.copy(),
        }

    def _start(self, cycle: ClientCycle) -> None:
        self._under_way = cycle
        task = self._loop.create_task(cycle.run(self._app))
        task.add_done_callback(self._state.tasks.discard)
        self._state.tasks.add(task)

    def _answered(self, cycle: ClientCycle) -> None:
        """An answer ended: the next request, if it is there already."""
        self._state.total_requests += 1
        out = self._out
        assert out is not None
        if out.is_closing:
            return
        out.resume()
        if self._pipeline:
            self._start(self._pipeline.popleft())
            return
        self._idle_since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._keep_alive_s, self._look)

    def _look(self) -> None:
        """Close the connection if nothing has come for long."""
        self._timer = None
        cycle = self._cycle
        if self._out is None or (cycle is not None and not cycle.is_complete):
            return  # the end of its answer sets the timer again
        left_s = self._idle_since + self._keep_alive_s - self._loop.time()
        if left_s <= 0.0:
            self._out.close()
        else:
            self._timer = self._loop.call_later(left_s, self._look)

    def _refuse(self) -> None:
        """What came is no request."""
        LOGGER.warning("a client sent something that is not HTTP")
        out = self._out
        assert out is not None
        headers = [
            *self._state.default_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(NOT_HTTP)),
            (b"connection", b"close"),
        ]
        out.write(STATUS_LINES[400] + header_lines(headers) + b"\r\n" + NOT_HTTP)
        out.close()


def _target(url: bytes) -> tuple[str, bytes, bytes]:
    """(path, the same as it was written, query) of a request's target."""
    if (
        url[:1] == b"/"
        and QUESTION_MARK not in url
        and HASH not in url
        and PERCENT not in url
        and url.find(b"//") < 0
    ):
        return url.decode("ascii"), url, b""
    parsed: Any = httptools.parse_url(url)  # whose `query` may be None, which its stub denies
    raw_path: bytes = parsed.path
    path = raw_path.decode("ascii")
    if "%" in path:
        path = unquote(path)
    return path, raw_path, parsed.query or b""
