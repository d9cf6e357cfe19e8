"""The console's files: whole, ours or exactly what npm has, and fit for a strict policy."""

import re
from base64 import b64encode
from hashlib import sha256

import pytest

from gateway.admin.console_pages import FOLDER, PATH, console_pages, policy_of

PAGES = console_pages()
OWN = sorted(path for path in FOLDER.glob("*.js"))
ROW = re.compile(
    r"^\| `([^`]+)` \| (\w+) [\d.]+ \| `[^`]+` \| [\w.-]+ \| `([0-9a-f]{64})` \|$", re.MULTILINE
)
START = (FOLDER / "index.html").read_text()
LINES_MAX = 200
BYTES_MAX = 200_000
"""Of all files together: a page that is opened at night over a phone."""


def text_of(path: str) -> str:
    """What is served there."""
    return PAGES[path].body.decode()


def resolved(path: str, name: str) -> str:
    """What a module at `path` means by `name`."""
    known = dict(re.findall(r'"([\w/]+)": "\./([^"]+)"', START))
    if name in known:
        return f"/{known[name]}"
    assert name.startswith("./"), f"{path} imports {name} from elsewhere"
    return path.rpartition("/")[0] + name[1:]


def test_vendored_files_are_those_of_npm() -> None:
    """What was changed by hand is never updated again, and nobody knows what it does."""
    rows = ROW.findall((FOLDER / "vendor" / "LICENCES.md").read_text())
    files = {path.name for path in (FOLDER / "vendor").iterdir()} - {"LICENCES.md"}
    assert {name for name, _, _ in rows} == files
    for name, _, digest in rows:
        assert sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == digest, name


def test_the_page_and_every_module_find_what_they_ask_for() -> None:
    """One file that was forgotten in the package is a white page at every user's."""
    for name in re.findall(r'(?:src|href)="([^"]+)"', START):
        assert f"/{name}" in PAGES, name
    for path in PAGES:
        if path.endswith((".js", ".mjs")):
            for name in re.findall(
                r'(?:^|[;}])\s*import[^"\'()]*from\s*["\']([^"\']+)', text_of(path), re.MULTILINE
            ):
                assert resolved(path, name) in PAGES, f"{path}: {name}"
    assert set(PAGES) >= {PATH, f"{PATH}/app.js", f"{PATH}/style.css", f"{PATH}/vendor/preact.mjs"}
    assert f"{PATH}/index.html" not in PAGES, "one page has one address"


def test_nothing_comes_from_elsewhere() -> None:
    """A gateway on an island has a console too, and no third party sees its operators."""
    for path in PAGES:
        if "/vendor/" not in path and not path.endswith(".svg"):
            assert not re.search(r"(?:https?:)?//[a-z][\w-]*\.[a-z]", text_of(path)), path
            assert "@import" not in text_of(path)


def test_the_policy_allows_the_import_map_and_nothing_else_inline() -> None:
    """An allowed inline script is where an injected one gets in."""
    (inline,) = re.findall(r"<script[^>]*>([^<]+)</script>", START)
    digest = b64encode(sha256(inline.encode()).digest()).decode()
    for page in PAGES.values():
        policy = dict(page.headers)[b"content-security-policy"].decode()
        assert f"script-src 'self' 'sha256-{digest}';" in policy
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
    assert policy_of(b"<p>").count("sha256") == 0


def test_no_markup_would_break_the_policy() -> None:
    """`style=` and `onclick=` in markup are refused by it, silently."""
    assert not re.search(r"\s(?:style|on\w+)=", START)
    for path in OWN:
        text = path.read_text()
        assert not re.search(r'\sstyle="', text), path
        assert not re.search(
            r"innerHTML|document\.write|\beval\(|new Function|dangerously", text
        ), path


def test_the_key_never_stands_in_an_address_and_nothing_is_kept_but_in_the_tab() -> None:
    """Addresses end in logs, histories and pasted links; localStorage outlives the tab."""
    for path in OWN:
        text = path.read_text()
        for kept in re.findall(r"localStorage\.setItem\(([^,)]+)", text):
            assert (path.name, kept) == ("app.js", "THEME")
        assert "document.cookie" not in text


@pytest.mark.parametrize("path", OWN, ids=lambda path: str(path.name))
def test_modules_stay_short(path: object) -> None:
    """The page has no build step, so its source is what it is."""
    assert (FOLDER / str(path)).read_text().count("\n") <= LINES_MAX


def test_all_of_it_is_small() -> None:
    """The first paint waits for all of it."""
    assert sum(len(page.body) for page in PAGES.values()) < BYTES_MAX


def test_tags_tell_contents_apart() -> None:
    """An upgrade that keeps the browser's old module beside a new one breaks the page."""
    assert len({page.tag for page in PAGES.values()}) == len(PAGES)
