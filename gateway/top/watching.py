"""What an operator is looking at: which view, which page, which picture, and whether it is old.

It follows keys and answers; it asks nobody, draws nothing, and reads no clock.
"""

from typing import Final

from gateway.top.picture import VIEWS, Picture, View
from gateway.top.rows import Rows, rows_of

VIEW_OF_KEY: Final[dict[str, View]] = {
    "t": "tiers",
    "n": "tenants",
    "u": "users",
    "r": "replicas",
    "w": "requests",
    "b": "batches",
}
QUIT: Final = frozenset({"q", "Q", "ctrl-c", "ctrl-d"})
BACK_S: Final = 5.0
"""So long it is told that a gateway that was gone is there again."""
PAGES_MAX: Final = 50
"""Beyond that nobody pages; the commands with `--json` tell all."""


class Watching:
    """The state of one `fairgate top`."""

    def __init__(self, view: View = "tiers") -> None:
        self.view: View = view
        self.page = 0
        self.rows_per_page = 1
        self.picture: Picture | None = None
        self.has_quit = False
        self._taken_at: float | None = None
        self._gone_since: float | None = None
        self._why_gone = ""
        self._back: tuple[float, float] | None = None
        """When it came back, and for how long it was gone."""

    @property
    def wanted(self) -> int:
        """Rows to ask for: up to the end of this page, and one to know whether there is another."""
        return (self.page + 1) * self.rows_per_page + 1

    def pressed(self, key: str) -> bool:
        """Follow a key; whether another picture is wanted now."""
        if key in QUIT:
            self.has_quit = True
        elif key.lower() in VIEW_OF_KEY:
            return self._turn_to(VIEW_OF_KEY[key.lower()])
        elif key in ("left", "right", "tab"):
            step = -1 if key == "left" else 1
            return self._turn_to(VIEWS[(VIEWS.index(self.view) + step) % len(VIEWS)])
        elif key in ("down", "page-down", " "):
            return self._page_to(self.page + 1)
        elif key in ("up", "page-up"):
            return self._page_to(self.page - 1)
        elif key == "home":
            return self._page_to(0)
        return False

    def took(self, picture: Picture, now: float) -> None:
        """The gateway answered."""
        self.picture, self._taken_at = picture, now
        if self._gone_since is not None:
            self._back = (now, now - self._gone_since)
            self._gone_since = None
        self.page = min(self.page, max(0, self.pages - 1))

    def failed(self, why: str, now: float) -> None:
        """It did not; the last picture stays."""
        if self._gone_since is None:
            self._gone_since = now
        self._why_gone, self._back = why, None

    @property
    def is_stale(self) -> bool:
        """Whether what is shown is of earlier."""
        return self._gone_since is not None

    @property
    def rows(self) -> Rows | None:
        """All that is known of the view; None: nothing yet."""
        return None if self.picture is None else rows_of(self.picture, self.view)

    @property
    def pages(self) -> int:
        """Pages that are known of, at least one."""
        rows = self.rows
        count = 0 if rows is None else len(rows.lines)
        return max(1, -(-count // self.rows_per_page))

    def news(self, now: float) -> str:
        """What to say of the gateway itself; empty where all is well."""
        if self._gone_since is not None:
            gone_s = now - self._gone_since
            if self._taken_at is None:
                return f"waiting for it, {gone_s:.0f} s: {self._why_gone}"
            return f"gone for {gone_s:.0f} s, shown is the last picture: {self._why_gone}"
        if self._back is not None and now - self._back[0] < BACK_S:
            return f"there again, after {self._back[1]:.0f} s"
        return "" if self.picture is not None else "asking"

    def _turn_to(self, view: View) -> bool:
        if view == self.view:
            return False
        self.view, self.page = view, 0
        return True

    def _page_to(self, page: int) -> bool:
        page = max(0, min(page, self.pages - 1, PAGES_MAX - 1))
        if page == self.page:
            return False
        self.page = page
        return True
