"""From the address of a store to the store: which kinds there are, and how each is written."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from gateway.tenancy.store.memory import MemoryStore
from gateway.tenancy.store.port import Store
from gateway.tenancy.store.sqlite import SqliteStore

WANTED = (
    "must be like sqlite:///fairgate.db (in the working directory), "
    "sqlite:////var/lib/fairgate/fairgate.db, redis://host:6379/0, or memory:"
)
WANTED_OPTION = (
    "may have one option, ?prefix= and up to 64 of a-z, A-Z, 0-9, _, . and -, which names the keys"
)
PREFIX_OPTION = re.compile(r"prefix=[A-Za-z0-9_.-]{1,64}|")


def store_of(url: str | None) -> Store:
    """The store at `url`, not opened yet; None: one in memory.

    Raises ValueError for an address that is of no store, without repeating it: it may hold a
    password.
    """
    return MemoryStore() if url is None else _maker(url)()


def checked_url(url: str) -> str:
    """`url`, if it is the address of a store. Raises ValueError, as `store_of` does."""
    _maker(url)
    return url


def is_shared(url: str | None) -> bool:
    """Whether another process can reach the same store at this address."""
    return url is not None and not url.startswith("memory:")


def _maker(url: str) -> Callable[[], Store]:
    try:
        parts = urlsplit(url)
        is_whole = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError(WANTED) from None
    match parts.scheme:
        case "memory" if url in ("memory:", "memory://"):
            return MemoryStore
        case "sqlite" if is_whole and not parts.netloc and not parts.query and parts.path[1:]:
            return partial(SqliteStore, Path(unquote(parts.path[1:])))
        case "redis" | "rediss" if is_whole and parts.hostname:
            if not re.fullmatch(r"/?\d{0,5}", parts.path):
                raise ValueError(WANTED)
            if not PREFIX_OPTION.fullmatch(parts.query):
                raise ValueError(WANTED_OPTION)
            return partial(_redis, parts)
    raise ValueError(WANTED)


def _redis(parts: SplitResult) -> Store:
    # The library takes a second to import: only who uses it pays.
    from gateway.tenancy.store.redis import PREFIX, RedisStore  # noqa: PLC0415 - see above

    prefix = parse_qs(parts.query).get("prefix", [PREFIX])[0]
    return RedisStore(parts._replace(query="", fragment="").geturl(), prefix=prefix)
