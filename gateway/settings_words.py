"""How single values are written in the settings: sizes, addresses of engines, words for nothing.

Each function takes what stands there and returns what is meant, or raises ValueError with what was
wanted. Which key has which kind of value is not known here.
"""

import ipaddress
import re
from urllib.parse import urlsplit

SIZE_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30,
}  # fmt: skip
ENGINE_ROUTES = ("/v1", "/health", "/metrics")


def parsed_size(value: object) -> object:
    """Bytes from `32MiB`, `1.5 GB` or a plain number; anything else is left to the type check."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip())
    if match is None or match[2].upper() not in SIZE_UNITS:
        raise ValueError("must be a number of bytes, or like 512KiB, 32MiB, 1GiB")
    return int(float(match[1]) * SIZE_UNITS[match[2].upper()])


def word_for_off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def word_for_no_hosts(value: object) -> object:
    """Media in the body itself, and from no host."""
    return () if value == "data-only" else value


def switched(value: object) -> object:
    """`on` and `off`, which YAML itself takes for booleans only where they have no quotes."""
    return {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value


def none_of_it(value: object) -> object:
    """A section that is null is one without a word in it."""
    return {} if value is None else value


def replica_from_url(value: object) -> object:
    """A replica written as its bare URL."""
    return {"url": value} if isinstance(value, str) else value


def checked_url(value: str) -> str:
    """The engine's root without a trailing slash; no credentials, query or route in it."""
    try:
        parts = urlsplit(value)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        port_is_valid = False
    if not port_is_valid or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be like http://host:8000 or https://host")
    if re.search(r"[\s\x00-\x1f\x7f]", value):
        raise ValueError("must have no spaces and no control characters")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "must not carry credentials: api_key_env names the variable that holds them"
        )
    if parts.query or parts.fragment:
        raise ValueError("must have no query and no fragment")
    path = parts.path.rstrip("/")
    if path.endswith(ENGINE_ROUTES):
        raise ValueError("must be the engine's root: the gateway adds /v1 and other routes itself")
    return f"{parts.scheme}://{parts.netloc}{path}"


def checked_hook(value: str) -> str:
    """An address that can be sent to; what it has of secrets is in its path or query."""
    try:
        parts = urlsplit(value)
        is_whole = parts.port is None or parts.port > 0
    except ValueError:
        is_whole = False
    if not is_whole or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be like https://host/path")
    if re.search(r"[\s\x00-\x1f\x7f]", value) or parts.username is not None or parts.fragment:
        raise ValueError("must have no spaces, no credentials and no fragment")
    return value


def checked_upstream(value: str) -> str:
    """A name, an address or a network that there can be."""
    if "/" in value or ":" in value:
        ipaddress.ip_network(value, strict=False)
    return value
