"""Watches the addresses behind one DNS name: each is a replica of its own.

It decides which addresses came and which vanished. It does not know what a replica is, and it
takes a resolver's failure, or an empty answer, for no news: replicas that are really gone are lost
by their probes, while a hiccup that drained everything would be an outage.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable

ADDRESSES_MAX = 1_000
"""Of a name with more addresses the first in order are used."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Host and port to IP addresses as text; OSError where that fails."""


async def resolved_by_system(host: str, port: int) -> list[str]:
    """The addresses the system's resolver knows for `host`; OSError where it knows none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class DnsWatch:
    """Looks `host` up every `every_s` seconds and tells which URLs are new and which are gone."""

    def __init__(
        self,
        host: str,
        port: int,
        every_s: float,
        *,
        on_change: Callable[[set[str], set[str]], None],
        resolve: Resolve = resolved_by_system,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        scheme: str = "http",
    ) -> None:
        """`on_change(added, vanished)` gets URLs, and is called only when one set is not empty."""
        self._host = host
        self._port = port
        self._every_s = every_s
        self._on_change = on_change
        self._resolve = resolve
        self._sleep = sleep
        self._scheme = scheme
        self.urls: frozenset[str] = frozenset()
        """The URLs of the last successful look-up."""
        self.last_error: str | None = None
        """Why the last look-up gave nothing; None after a good one."""

    async def run(self) -> None:
        """Looks up until cancelled, at once and then every `every_s` seconds."""
        while True:
            await self.look_once()
            await self._sleep(self._every_s)

    async def look_once(self) -> None:
        """One look-up; what it finds is told, a failure only noted in `last_error`."""
        try:
            addresses = await self._resolve(self._host, self._port)
        except (OSError, UnicodeError) as error:
            self.last_error = f"{self._host}: {error}"
            return
        if not addresses:
            self.last_error = f"{self._host}: no address"
            return
        self.last_error = None
        kept = sorted(set(addresses))[:ADDRESSES_MAX]
        before, self.urls = self.urls, frozenset(self._url(address) for address in kept)
        added, vanished = self.urls - before, before - self.urls
        if added or vanished:
            self._on_change(set(added), set(vanished))

    def _url(self, address: str) -> str:
        # Of a link-local address the zone follows a %, which a URL writes as %25 (RFC 6874).
        host = f"[{address.replace('%', '%25')}]" if ":" in address else address
        return f"{self._scheme}://{host}:{self._port}"
