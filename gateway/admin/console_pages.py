"""The console's files, read once: what they are, and what a browser may do with them.

They are the same for everybody and hold nothing of this gateway. Each stands under its own path;
nothing is looked for on the disk when somebody asks.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

FOLDER = Path(__file__).parent / "console"
START = "index.html"
PATH = "/console"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files of other kinds are for readers of the repository."""
INLINE = re.compile(rb"<script type=\"importmap\">(.*?)</script>", re.DOTALL)
POLICY = (
    "default-src 'none'; script-src 'self' {inline}; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from elsewhere, nothing inline but the import map, and nothing is sent elsewhere."""


@dataclass(frozen=True, slots=True)
class StaticPage:
    """One file."""

    body: bytes
    tag: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def _needs_key(answer: bool) -> StaticPage:
    body = b'{"needs_key":true}' if answer else b'{"needs_key":false}'
    headers = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
    return StaticPage(body, b"", headers)


ENTRY = f"{PATH}/entry"
ENTRY_PAGES: Mapping[bool, StaticPage] = MappingProxyType(
    {answer: _needs_key(answer) for answer in (False, True)}
)
"""Whether a key is to be asked for: a page that had to try would be refused first."""


def console_pages() -> Mapping[str, StaticPage]:
    """All of them by path. Raises OSError where the package is not whole."""
    start = (FOLDER / START).read_bytes()
    policy = policy_of(start).encode("ascii")
    pages = {
        f"{PATH}/{path.relative_to(FOLDER).as_posix()}": _page(path.read_bytes(), path, policy)
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES
    }
    return {PATH: pages.pop(f"{PATH}/{START}"), **pages}


def policy_of(start: bytes) -> str:
    """The Content-Security-Policy that lets the page's own import map be."""
    return POLICY.format(inline=" ".join(_hashes(INLINE.findall(start))))


def _hashes(scripts: Iterable[bytes]) -> list[str]:
    return [f"'sha256-{b64encode(sha256(each).digest()).decode('ascii')}'" for each in scripts]


def _page(body: bytes, path: Path, policy: bytes) -> StaticPage:
    tag = b'"%b"' % sha256(body).hexdigest()[:32].encode("ascii")
    headers = (
        (b"content-type", TYPES[path.suffix].encode("ascii")),
        (b"content-security-policy", policy),
        (b"referrer-policy", b"no-referrer"),
        (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        # Kept, and asked for again each time: an upgrade must not meet the pages of before.
        (b"cache-control", b"no-cache"),
        (b"etag", tag),
    )
    return StaticPage(body, tag, headers)
