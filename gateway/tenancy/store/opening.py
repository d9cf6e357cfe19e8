"""From the address of a store to the store: which kinds there are, and how each is written."""

from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from gateway.tenancy.store.memory import MemoryStore
from gateway.tenancy.store.port import Store, StoreError
from gateway.tenancy.store.sqlite import SqliteStore

WANTED = (
    "must be like sqlite:///fairgate.db (in the working directory), "
    "sqlite:////var/lib/fairgate/fairgate.db, redis://host:6379/0, or memory:"
)


def store_of(url: str | None) -> Store:
    """The store at `url`, not opened yet; None: one in memory.

    Raises StoreError for an address that is of no store, without repeating it: it may hold a
    password.
    """
    if url is None:
        return MemoryStore()
    try:
        parts = urlsplit(url)
    except ValueError:
        raise StoreError(WANTED) from None
    match parts.scheme:
        case "memory" if url.rstrip("/") == "memory:":
            return MemoryStore()
        case "sqlite" if not parts.netloc and not parts.query and len(parts.path) > 1:
            return SqliteStore(Path(unquote(parts.path[1:])))
        case "redis" | "rediss" if parts.hostname:
            return _redis(parts)
    raise StoreError(WANTED)


def _redis(parts: SplitResult) -> Store:
    # The library takes a second to import: only who uses it pays.
    from gateway.tenancy.store.redis import PREFIX, RedisStore  # noqa: PLC0415 - see above

    options = parse_qs(parts.query)
    prefix = options.pop("prefix", [PREFIX])[-1]
    if options:
        raise StoreError("the only option of a redis:// address is ?prefix=")
    try:
        return RedisStore(parts._replace(query="", fragment="").geturl(), prefix=prefix)
    except ValueError:
        raise StoreError(WANTED) from None
