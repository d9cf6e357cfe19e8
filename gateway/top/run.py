"""`fairgate top`: the console's picture in a terminal, followed until somebody quits.

It decides when the gateway is asked and when the screen is drawn. One question is under way at a
time, on a thread of its own, so that keys are heard while a gateway does not answer.
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import Final, Protocol

from rich.console import Console
from rich.live import Live

from gateway.remote import RemoteError
from gateway.top.keyboard import keyboard
from gateway.top.picture import VIEWS, Gateway, Picture, View, taken
from gateway.top.screen import print_once, rows_that_fit, screenful
from gateway.top.watching import Watching

TICK_S: Final = 0.2
"""How soon a change of the picture, or of the terminal's size, is drawn."""
ROWS_ONCE: Final = 20
"""Rows of each view in a picture that is printed."""


class Keys(Protocol):
    """Whoever presses keys."""

    def pressed(self, within_s: float) -> list[str]:
        """Those pressed within so long."""


class Follower:
    """Asks, listens to keys, and tells what to draw."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        apart: "Apart | None" = None,
    ) -> None:
        """`apart` works something out without being waited for; None: on a thread."""
        self.watching = Watching()
        self._gateway = gateway
        self._interval_s = interval_s
        self._clock = clock
        self._apart = apart or on_a_thread
        self._due_at = clock()
        self._asked: tuple[View, Future[Picture]] | None = None

    def follow(self, keys: Keys, size: Callable[[], tuple[int, int]], draw: "Draw") -> None:
        """Until somebody quits. `size` tells columns and lines."""
        while not self.watching.has_quit:
            width, height = size()
            self.watching.rows_per_page = rows_that_fit(height)
            self._look()
            draw(self.watching, width, self._clock())
            for key in keys.pressed(TICK_S):
                if self.watching.pressed(key):
                    self._due_at = self._clock()

    def _look(self) -> None:
        """Take an answer that came, and ask where it is time."""
        if self._asked is not None and self._asked[1].done():
            view, answer = self._asked
            self._asked = None
            self._take(view, answer)
        now = self._clock()
        if self._asked is None and now >= self._due_at:
            self._due_at = now + self._interval_s
            view, rows = self.watching.view, self.watching.wanted
            self._asked = (view, self._apart(partial(taken, self._gateway, (view,), rows)))

    def _take(self, view: View, answer: Future[Picture]) -> None:
        try:
            picture = answer.result()
        except RemoteError as error:
            self.watching.failed(str(error), self._clock())
            return
        self.watching.took(picture, self._clock())
        if view != self.watching.view:  # it was turned meanwhile
            self._due_at = self._clock()


Draw = Callable[[Watching, int, float], None]
Apart = Callable[[Callable[[], Picture]], Future[Picture]]


def on_a_thread(work: Callable[[], Picture]) -> Future[Picture]:
    """Its result, worked out by a thread that nobody waits for who quits."""
    future: Future[Picture] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    Thread(target=run, name="top", daemon=True).start()
    return future


def once(gateway: Gateway, url: str, console: Console) -> None:
    """Print one picture, of all views. Raises RemoteError."""
    print_once(taken(gateway, VIEWS, ROWS_ONCE), url, console, rows_max=ROWS_ONCE)


def in_json(gateway: Gateway, *, interval_s: float | None) -> None:
    """One picture as a line of JSON; with an interval, one after another until interrupted.

    Raises RemoteError where there is no first one; later ones that fail are told as lines too.
    """
    sys.stdout.write(json.dumps(taken(gateway, VIEWS, ROWS_ONCE).told()) + "\n")
    while interval_s is not None:
        sys.stdout.flush()
        time.sleep(interval_s)
        try:
            told = taken(gateway, VIEWS, ROWS_ONCE).told()
        except RemoteError as error:
            told = {"object": "top.failed", "error": str(error)}
        sys.stdout.write(json.dumps(told) + "\n")


def follow(gateway: Gateway, url: str, console: Console, *, interval_s: float) -> None:
    """Show it on this terminal until somebody quits."""
    follower = Follower(gateway, interval_s=interval_s)
    with (
        keyboard(sys.stdin.fileno()) as keys,
        Live(console=console, auto_refresh=False, screen=True) as live,
    ):

        def draw(watching: Watching, width: int, now: float) -> None:
            live.update(screenful(watching, url, width=width, now=now), refresh=True)

        follower.follow(keys, lambda: (console.size.width, console.size.height), draw)
