"""Who operates this gateway: the holder of an admin key, or whoever sits at this machine.

It looks at the key, at Host and Origin, and at how often an address guessed. Which route was asked
for is decided before it is called, and by nobody but `door.py`.
"""

import hmac
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.api.auth import credential, headers_of
from gateway.api.disconnect import Scope
from gateway.errors import ForbiddenError, GatewayError
from gateway.tenancy.keys import KEY_BYTES_MAX, key_hash

LOCAL = "local"
"""Who asks where no key is needed."""
ADMIN = "admin"
"""Who holds the key that has no name of its own."""
FAILURES_MAX = 10
"""Wrong keys of one address, one soon after another, before it is not listened to."""
LOCKED_S = 60.0
"""For how long then; and a wrong key is forgotten after so long."""
PEERS_MAX = 4_096
"""Addresses whose failures are remembered; the one that failed longest ago is dropped first."""
IPV6_SITE_BITS = 64
"""Whoever has one IPv6 address has all of its network."""
SAME = ("same-origin", "none")
LOOPBACK_NAME = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?", re.IGNORECASE)
DEFAULT_PORTS = (":80", ":443")


class ForeignPageError(GatewayError):
    """A web page of somebody else asks, or one that took a name of ours."""

    status, type, code = 403, "permission_error", "foreign_origin"


class LockedOutError(GatewayError):
    """Too many wrong keys came from this address."""

    status, type, code = 429, "rate_limit_error", "too_many_attempts"


@dataclass(frozen=True, slots=True)
class AdminKey:
    """One key that opens the operators' side, known by its hash; the name is for the audit."""

    name: str
    key_sha256: str


class Guesses:
    """Wrong keys by the address they came from.

    An address that guessed too often is not listened to, right keys included: else it could go on
    guessing. All others are; so nobody is kept out who can come from elsewhere.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """(wrong keys, when they are forgotten), the latest last."""

    def __len__(self) -> int:
        return len(self._failed)

    def locked_s(self, peer: str) -> float:
        """For how long `peer` is not listened to; 0: it is."""
        count, until = self._failed.get(peer, (0, 0.0))
        return max(0.0, until - self._clock()) if count >= FAILURES_MAX else 0.0

    def failed(self, peer: str) -> None:
        """A wrong key came from `peer`."""
        now = self._clock()
        count, until = self._failed.pop(peer, (0, 0.0))
        self._failed[peer] = (count + 1 if now < until else 1, now + LOCKED_S)
        if len(self._failed) > PEERS_MAX:
            self._failed.popitem(last=False)


class Guard:
    """Admits operators."""

    def __init__(
        self, keys: Iterable[AdminKey], *, is_open: bool, clock: Callable[[], float]
    ) -> None:
        """`is_open`: no key is needed, since only this machine can reach the listener."""
        self._guesses = Guesses(clock)
        self.configure(keys, is_open=is_open)

    def configure(self, keys: Iterable[AdminKey], *, is_open: bool) -> None:
        """These keys from now on."""
        self._keys: Sequence[AdminKey] = tuple(keys)
        self._is_open = is_open

    @property
    def needs_key(self) -> bool:
        """Whether anybody is asked for one."""
        return not self._is_open

    def admit(self, scope: Scope) -> str:
        """The name of who asks. Raises ForeignPageError, LockedOutError, ForbiddenError."""
        self.welcome(scope)
        if self._is_open:
            return LOCAL
        peer = peer_of(scope)
        locked_s = self._guesses.locked_s(peer)
        if locked_s > 0.0:
            raise LockedOutError(
                "Too many wrong admin keys came from this address.", retry_after_s=locked_s
            )
        presented = credential(headers_of(scope["headers"]))
        holder = self.holder(presented)
        if holder is None:
            if presented:
                self._guesses.failed(peer)
            raise ForbiddenError("This needs the admin key.")
        return holder

    def welcome(self, scope: Scope) -> None:
        """Look at Host and Origin alone, for what tells nothing. Raises ForeignPageError."""
        host = _only(scope, b"host")
        self._look_at_page(scope, host)
        if self._is_open and (host is None or not LOOPBACK_NAME.fullmatch(host)):
            raise ForeignPageError(
                "Without an admin key this is for this machine: the Host header must be "
                "localhost, 127.0.0.1 or [::1]."
            )

    def holder(self, api_key: bytes | None) -> str | None:
        """Whose key it is. All hashes are compared, each in constant time."""
        if not api_key or len(api_key) > KEY_BYTES_MAX:
            return None
        found, presented = None, key_hash(api_key)
        for key in self._keys:
            if hmac.compare_digest(presented, key.key_sha256):
                found = key.name
        return found

    def _look_at_page(self, scope: Scope, host: str | None) -> None:
        """A page of ours, or no page at all, may ask."""
        origin = _only(scope, b"origin")
        if origin is not None and (host is None or not _is_same(origin, host)):
            raise ForeignPageError("A page of another origin asks: that is not allowed.")
        site = _only(scope, b"sec-fetch-site")
        if site is None or site in SAME:
            return
        # Following a link to a page of ours is no deed of the page that has it.
        follows_link = _only(scope, b"sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if not follows_link:
            raise ForeignPageError("A page of another site asks: that is not allowed.")


def peer_of(scope: Scope) -> str:
    """The address that a connection came from, as far as it tells its owners apart."""
    client = scope.get("client")
    if not client:
        return "unknown"
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return str(client[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, IPV6_SITE_BITS), strict=False))
    return str(address)


def _only(scope: Scope, name: bytes) -> str | None:
    """The one value of a header. Raises ForeignPageError where it is given twice."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise ForeignPageError(f"The header {name.decode()} is given twice.")
    return values[0].decode("latin-1").strip() if values else None


def _is_same(origin: str, host: str) -> bool:
    """Whether the page at `origin` came from `host`; the scheme may end at a proxy before us."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return False
    return _bare(parts.netloc) == _bare(host)


def _bare(host: str) -> str:
    host = host.lower()
    return next((host.removesuffix(port) for port in DEFAULT_PORTS if host.endswith(port)), host)
