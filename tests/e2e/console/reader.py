"""One page of the console in a browser, as its reader uses it, and all that it complained of."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

AXE = """axe.run().then((told) => told.violations.map(
    (each) => `${each.id}: ${each.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`))"""
ANSWERED = "!/Asking|Counting/.test(document.querySelector('main').innerText)"
SIZE = {"width": 1280, "height": 860}
STEP_MS = 20
TIMEOUT_MS = 20_000
"""Of a machine that does other things as well."""


@dataclass(slots=True)
class Reader:
    """Who reads."""

    page: Any
    url: str
    errors: list[str] = field(default_factory=list)

    def enter(self, key: str) -> None:
        """Come in with a key."""
        self.page.goto(f"{self.url}/console")
        self.page.fill("#key", key)
        self.page.keyboard.press("Enter")

    def see(self, view: str) -> None:
        """Go to a view, as a link does, until it shows what it asked for."""
        self.page.evaluate(f"location.hash = '/{view.lower()}'")
        self.page.wait_for_selector(f"h1:text-is('{view}')")
        self.until(ANSWERED)

    def until(self, condition: str, argument: object = None) -> Any:
        """Wait until the condition holds, a line of JavaScript, and return what it gives.

        Not the browser's own way of waiting: that evaluates text, which our pages forbid.
        """
        deadline = monotonic() + TIMEOUT_MS / 1e3
        while not (found := self.page.evaluate(condition, argument)):
            assert monotonic() < deadline, f"never: {condition}"
            self.page.wait_for_timeout(STEP_MS)
        return found

    def faults(self) -> list[str]:
        """What axe finds."""
        return list(self.page.evaluate(AXE))

    def confirm(self, verb: str) -> None:
        """Say yes to what is asked."""
        self.page.click(f"dialog[open] button:text-is('{verb}')")
        self.page.wait_for_selector("dialog[open]", state="detached")

    def text(self, selector: str) -> str:
        """What stands there."""
        return str(self.page.inner_text(selector))


@contextmanager
def reading(
    browser: Any, url: str, *, axe: Path | None = None, scheme: str = "light", **options: Any
) -> Iterator[Reader]:
    """A fresh window that knows nothing."""
    context = browser.new_context(**{"viewport": SIZE, "color_scheme": scheme, **options})
    if axe is not None:
        context.add_init_script(path=axe)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    reader = Reader(page, url)
    page.on("console", lambda said: _said(reader, said))
    page.on("pageerror", lambda error: reader.errors.append(str(error)))
    try:
        yield reader
    finally:
        context.close()


def _said(reader: Reader, said: Any) -> None:
    if said.type in ("error", "warning"):
        reader.errors.append(said.text)
