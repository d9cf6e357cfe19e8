"""Where a replica that an operator adds may be: no address that only this machine can reach.

A cloud's metadata service hands credentials to whoever asks from inside, and a gateway that can be
told to ask is how an outsider gets them. The file is trusted; what comes over REST is not.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from urllib.parse import urlsplit

from gateway.errors import BadRequestError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

RESOLVE_S = 2.0
"""A name must be found within this time."""
METADATA = frozenset(
    map(
        ipaddress.ip_address,
        (
            "169.254.169.254",  # AWS, Azure, Google, OpenStack
            "169.254.170.2",  # AWS, of containers
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure's wire server
            "192.0.0.192",  # Oracle
            "fd00:ec2::254",  # AWS over IPv6
            "fd20:ce::254",  # Google over IPv6
        ),
    )
)
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ForbiddenUpstreamError(BadRequestError):
    """A replica must not be there."""

    code = "upstream_not_allowed"


class Upstreams:
    """The rule on addresses."""

    def __init__(self, allowed: Iterable[str] = (), *, resolve: Resolve | None = None) -> None:
        """`allowed`: names, `*.suffixes`, addresses and networks; empty: all but what is barred."""
        self._resolve = _resolved if resolve is None else resolve
        self.configure(allowed)

    def configure(self, allowed: Iterable[str]) -> None:
        """These from now on."""
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._names: list[str] = []
        for entry in allowed:
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                self._names.append(entry.lower())

    async def check_url(self, url: str) -> None:
        """Raises BadRequestError unless a replica may be at `url`."""
        parts = urlsplit(url)
        assert parts.hostname is not None, "the shape was checked"
        port = parts.port or (443 if parts.scheme == "https" else 80)
        await self._check(parts.hostname, port, param="url")

    async def check_dns(self, dns: str) -> None:
        """Raises BadRequestError unless replicas may be behind this name with its port."""
        host, _, port = dns.rpartition(":")
        await self._check(host, int(port), param="dns")

    async def _check(self, host: str, port: int, *, param: str) -> None:
        host = host.lower().rstrip(".")
        if self._is_named(host):
            return
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await self._resolve(host, port)
        except (OSError, UnicodeError, TimeoutError):
            found = ()
        if not found:
            text = f"{host[:256]} has no address, so it cannot be known where it leads."
            raise ForbiddenUpstreamError(text, param=param)
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            if not self._is_allowed(address):
                raise ForbiddenUpstreamError(
                    f"A replica must not be at {address}: admin.upstreams says what is allowed.",
                    param=param,
                )

    def _is_named(self, host: str) -> bool:
        return any(
            host.endswith(name[1:]) if name.startswith("*.") else host == name
            for name in self._names
        )

    def _is_allowed(self, address: Address) -> bool:
        if any(address in network for network in self._networks):
            return True
        if self._networks or self._names:
            return False
        return not is_barred(address)


def is_barred(address: Address) -> bool:
    """Whether nothing that serves models is there: link-local, metadata, multicast, unspecified."""
    inner = _inner(address)
    if inner is not None and is_barred(inner):
        return True
    return (
        address in METADATA
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or (isinstance(address, ipaddress.IPv4Address) and _is_nowhere(address))
    )


def _is_nowhere(address: ipaddress.IPv4Address) -> bool:
    """`0.x.x.x` is this machine to some systems; from 240 on nothing is, or everybody."""
    return address.packed[0] == 0 or address.packed[0] >= 240


def _inner(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address in NAT64 or address.packed[:12] == bytes(12):
        return ipaddress.IPv4Address(address.packed[12:]) if int(address) > 1 else None
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour


async def _resolved(host: str, port: int) -> Sequence[str]:
    """All addresses of a name, however it is written: `2130706433` is one of them, too."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})
