"""Where Redis is, from one URL: a server, a socket, a master that sentinels know, or a cluster.

Nothing is asked here. A URL may hold a password: no message repeats any of it.
"""

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

Kind = Literal["server", "sentinel", "cluster"]
Spot = tuple[str, int]
"""(host, port); (path, 0) of a Unix socket."""

WANTED = (
    "must be like redis://host:6379/0, rediss://host (TLS), unix:///run/redis.sock, "
    "redis+sentinel://host1:26379,host2:26379/NAME/0, or redis+cluster://host1:6379,host2:6379"
)
WANTED_OPTIONS = (
    "may have the options ?ca_file= with TLS, and ?sentinel_user= and ?sentinel_password= for "
    "sentinels that want them"
)
KINDS: dict[str, tuple[Kind, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("server", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
PORT = 6379
SENTINEL_PORT = 26379
SPOTS_MAX = 16
"""Sentinels, or first nodes of a cluster, that are asked."""
DATABASE_MAX = 99_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """How to find Redis and what to say to be let in."""

    kind: Kind
    spots: tuple[Spot, ...]
    is_tls: bool = False
    is_socket: bool = False
    master: str = ""
    """Under which name sentinels know it."""
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    sentinel_user: str = ""
    sentinel_password: str = field(default="", repr=False)
    ca_file: str | None = None

    def __str__(self) -> str:
        """As it may stand in a log: without credentials."""
        if self.is_socket:
            return f"unix://{self.spots[0][0]}"
        scheme = ("rediss" if self.is_tls else "redis") + (
            "" if self.kind == "server" else f"+{self.kind}"
        )
        spots = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                         for host, port in self.spots)  # fmt: skip
        return f"{scheme}://{spots}" + (f"/{self.master}" if self.master else "")


def address_of(url: str) -> Address:
    """The address that `url` is. Raises ValueError, which does not repeat it."""
    try:
        parts = urlsplit(url)
        if parts.fragment:
            raise ValueError(WANTED)
        kind, is_tls = KINDS[parts.scheme]
        login, _, places = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        options = _options(parts, is_tls=is_tls, kind=kind)
        if parts.scheme == "unix":
            return _socket(parts, places, user=unquote(user), password=unquote(password))
        port = SENTINEL_PORT if kind == "sentinel" else PORT
        spots = tuple(_spot(place, port) for place in places.split(","))
        master, database = _path(parts.path, kind)
    except (KeyError, ValueError) as error:
        raise ValueError(WANTED_OPTIONS if str(error) == WANTED_OPTIONS else WANTED) from None
    if len(spots) > (1 if kind == "server" else SPOTS_MAX):
        raise ValueError(WANTED)
    return Address(
        kind=kind,
        spots=spots,
        is_tls=is_tls,
        master=master,
        database=database,
        user=unquote(user),
        password=unquote(password),
        sentinel_user=options.get("sentinel_user", ""),
        sentinel_password=options.get("sentinel_password", ""),
        ca_file=options.get("ca_file"),
    )


def checked_url(url: str) -> str:
    """`url`, if it is an address of Redis. Raises ValueError, as `address_of` does."""
    address_of(url)
    return url


def _options(parts: SplitResult, *, is_tls: bool, kind: Kind) -> dict[str, str]:
    allowed = {"ca_file"} if is_tls else set()
    if kind == "sentinel":
        allowed |= {"sentinel_user", "sentinel_password"}
    found = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    if len(dict(found)) != len(found) or not allowed >= {key for key, _ in found}:
        raise ValueError(WANTED_OPTIONS)
    return dict(found)


def _socket(parts: SplitResult, places: str, *, user: str, password: str) -> Address:
    path = unquote(parts.path)
    if places or not path.startswith("/") or path == "/" or "\0" in path:
        raise ValueError(WANTED)
    return Address(
        kind="server", spots=((path, 0),), is_socket=True, user=user, password=password
    )  # fmt: skip


def _spot(place: str, port: int) -> Spot:
    """One `host:port` of the list."""
    parts = urlsplit(f"//{place}")
    host = parts.hostname
    if not host or parts.path or re.search(r"[\s\x00-\x1f\x7f]", host):
        raise ValueError(WANTED)
    given = parts.port
    if given == 0:
        raise ValueError(WANTED)
    return host, given or port


def _path(path: str, kind: Kind) -> tuple[str, int]:
    """(name of the master, number of the database) of what follows the hosts."""
    if kind == "cluster":
        if path not in ("", "/", "/0"):
            raise ValueError(WANTED)
        return "", 0
    master, number = "", path[1:]
    if kind == "sentinel":
        master, _, number = number.partition("/")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", master):
            raise ValueError(WANTED)
    if not re.fullmatch(r"\d{0,5}", number):
        raise ValueError(WANTED)
    return master, int(number or 0)
