"""`fairgate top` followed: keys, pages, a gateway that goes away, and terminals of all sizes."""

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from gateway.remote import RemoteError
from gateway.top.keyboard import keys_in
from gateway.top.picture import VIEWS, Picture, taken
from gateway.top.rows import COLUMNS
from gateway.top.run import Follower, in_json, once
from gateway.top.screen import AROUND, rows_that_fit, screenful
from gateway.top.watching import Watching
from tests.support.pictures import Answering, batch, line, overview, replica, request

URL = "http://127.0.0.1:8080"
CROWD = [request(number) for number in range(1_000)]
LOOKS_MAX = 1_000


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Hands:
    """Presses a key when the test's next condition holds; each look takes a while."""

    def __init__(self, clock: Clock, script: list[tuple[Callable[[], bool], str]]) -> None:
        self._clock = clock
        self._script: Iterator[tuple[Callable[[], bool], str]] = iter(script)
        self._next = next(self._script)
        self._looks = 0

    def pressed(self, within_s: float) -> list[str]:
        """The key that is due."""
        self._looks += 1
        assert self._looks < LOOKS_MAX, "what the test waits for does not come"
        self._clock.now += within_s
        condition, key = self._next
        if not condition():
            return []
        self._next = next(self._script, (lambda: False, ""))
        return [key]


def drawn(watching: Watching, *, width: int = 80, now: float = 0.0, **options: Any) -> str:
    """What stands on a terminal of this width."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, _environ=options, legacy_windows=False
    )
    console.print(screenful(watching, URL, width=width, now=now))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def follow(gateway: Answering, *script: tuple[Callable[[Watching], bool], str]) -> list[str]:
    """The pictures drawn while keys were pressed, and at last `q`."""
    clock, screens = Clock(), list[str]()
    follower = Follower(gateway, interval_s=2.0, clock=clock, apart=at_once)
    watching = follower.watching

    def draw(seen: Watching, width: int, now: float) -> None:
        screen = drawn(seen, width=width, now=now, NO_COLOR="1", TERM="xterm")
        if screens[-1:] != [screen]:
            screens.append(screen)

    keys = Hands(clock, [(partial(on, watching), key) for on, key in script])
    follower.follow(keys, lambda: (80, 24), draw)
    return screens


def at_once(work: Callable[[], Picture]) -> Future[Picture]:
    """Worked out here and now."""
    future: Future[Picture] = Future()
    try:
        future.set_result(work())
    except RemoteError as error:
        future.set_exception(error)
    return future


def shows(view: str) -> Callable[[Watching], bool]:
    """Whether the view is there, with figures."""
    return lambda watching: watching.view == view and watching.rows is not None


def test_keys_turn_the_views_and_each_asks_for_what_it_shows() -> None:
    """Ten thousand requests and a hundred replicas are not fetched for a table of four tiers."""
    gateway = Answering(
        **{
            "overview": overview(tiers=[line("critical")], tenants=[line("acme")]),
            "overview/users": {"users": [line("alice", tenant="acme")], "users_more": 0},
            "replicas": {"data": [replica("gpu0")]},
            "requests": {"data": CROWD[:3]},
        }
    )
    screens = follow(
        gateway,
        (shows("tiers"), "u"),
        (shows("users"), "r"),
        (shows("replicas"), "w"),
        (shows("requests"), "left"),
        (shows("replicas"), "n"),
        (shows("tenants"), "t"),
        (shows("tiers"), "q"),
    )
    for name in ("critical", "alice", "gpu0", "id000002", "acme"):
        assert any(name in screen for screen in screens), name
    routes = [route for route, _ in gateway.asked]
    assert routes[0] == "overview"
    assert routes.count("replicas") <= routes.count("overview") / 2


def test_pages_go_as_far_as_there_is_something() -> None:
    """The one who is looked for may wait at place forty."""
    gateway = Answering(overview=overview(waiting=1_000), requests={"data": CROWD})
    screens = follow(
        gateway,
        (shows("tiers"), "w"),
        (lambda at: at.view == "requests" and at.pages > 1, "down"),
        (lambda at: at.page == 1 and at.pages > 2, "page-down"),
        (lambda at: at.page == 2 and at.pages > 3, "up"),
        (lambda at: at.page == 1, "home"),
        (lambda at: at.page == 0, "up"),
        (lambda at: at.page == 0, "q"),
    )
    assert any("id000036" in screen and "requests 3/4+" in screen for screen in screens)
    limits = [int(str(query["limit"])) for route, query in gateway.asked if route == "requests"]
    assert max(limits) == 3 * 18 + 1, "the third page, and whether there is a fourth"
    assert "id000000" in screens[-1]


def test_a_gateway_that_goes_away_and_comes_back_is_told_so() -> None:
    """A frozen screen that looks alive is worse than none."""
    gateway = Answering(overview=overview(tiers=[line("critical", waiting=7)]))

    def gone(watching: Watching) -> bool:
        gateway.is_gone = watching.rows is not None
        return gateway.is_gone

    def back(watching: Watching) -> bool:
        gateway.is_gone = not watching.is_stale
        return watching.is_stale

    screens = follow(
        gateway,
        (gone, "x"),
        (back, "x"),
        (lambda at: not at.is_stale, "q"),
    )
    stale = [screen for screen in screens if "shown is the last picture" in screen]
    assert stale
    assert "connection refused" in stale[0]
    assert "critical" in stale[0], "what was known stays to be seen"
    assert "there again, after" in screens[-1]


def test_it_may_be_started_before_the_gateway() -> None:
    """Who restarts a gateway wants to watch it come."""
    gateway = Answering()
    gateway.is_gone = True

    def came(watching: Watching) -> bool:
        gateway.is_gone = not watching.is_stale
        return watching.is_stale

    screens = follow(gateway, (came, "x"), (shows("tiers"), "q"))
    assert any("waiting for it" in screen for screen in screens)
    assert "there again" in screens[-1]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (80, 5)])
def test_a_picture_fits_its_terminal(width: int, height: int) -> None:
    """A line that wraps pushes the first ones out of sight."""
    long = replica("a-replica-with-a-name-of-some-length:8000", is_up=False)
    long["live"]["health"]["error"] = "no answer " * 40
    gateway = Answering(
        overview=overview(tiers=[line("t" * 60)] * 90, tenants=[line("n" * 90)] * 90, waiting=90),
        replicas={"data": [long] * 90},
        requests={"data": CROWD},
        batches={"data": [batch(0, tenant="n" * 90, waits_for="no answer " * 40)] * 90},
        **{"overview/users": {"users": [line("u" * 90, tenant="n" * 90)] * 90, "users_more": 9}},
    )
    for view in VIEWS:
        watching = Watching(view)
        watching.rows_per_page = rows_that_fit(height)
        watching.took(taken(gateway, (view,), watching.wanted), 0.0)
        watching.failed("no answer " * 40, 1.0)
        lines = drawn(watching, width=width, NO_COLOR="1", TERM="xterm").splitlines()
        assert len(lines) <= max(height, rows_that_fit(height) + AROUND)
        plain = [Text.from_ansi(each).plain for each in lines]
        assert [each for each in plain if len(each) > width] == []
        if width == 80 and view != "requests":
            assert COLUMNS[view][-1] in plain[3], "no figure gives way to a name"


def test_without_colours_nothing_is_said_by_colour_alone() -> None:
    """NO_COLOR is a promise, and a replica that is down says so in words."""
    gateway = Answering(replicas={"data": [replica("a", is_up=False)]})
    watching = Watching("replicas")
    watching.rows_per_page = 5
    watching.took(taken(gateway, ("replicas",), 5), 0.0)
    plain = drawn(watching, NO_COLOR="1", TERM="xterm-256color")
    assert "\x1b[31m" not in plain
    assert "\x1b[1;31m" not in plain
    assert "down" in plain
    assert "\x1b[1;31m" in drawn(watching, TERM="xterm-256color")


def test_once_prints_all_views_and_ends() -> None:
    """A cron job and a bug report want text."""
    gateway = Answering(
        overview=overview(tiers=[line("critical")], tenants=[line("acme")], tenants_more=4),
        replicas={"data": [replica("gpu0")]},
        requests={"data": CROWD},
    )
    console = Console(file=io.StringIO(), width=100)
    once(gateway, URL, console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    for word in ("critical", "acme", "and 4 more", "users: none", "gpu0", "id000019"):
        assert word in said
    assert "id000020" not in said


def test_json_is_one_document_a_line_and_goes_on_over_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that reads lines must not end with the first restart of the gateway."""
    gateway = Answering()
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        gateway.is_gone = len(naps) == 1
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", nap)
    with pytest.raises(KeyboardInterrupt):
        in_json(gateway, interval_s=2.0)
    told = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    assert [each["object"] for each in told] == ["top", "top.failed", "top"]
    gateway.is_gone = True
    with pytest.raises(RemoteError):
        in_json(gateway, interval_s=None)


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOC\x1b[D", ["right", "left"]),
        (b"\x1b[5~\x1b[6~", ["page-up", "page-down"]),
        (b"\x1b[1;5Cu", ["u"]),
        (b"\x1b", []),
        (b"\x1b[", []),
        (b"\xc3\xa9", ["\xc3", "\xa9"]),
        (b"\x03", ["ctrl-c"]),
        (b"\t", ["tab"]),
    ],
)
def test_what_terminals_send_becomes_keys(typed: bytes, keys: list[str]) -> None:
    """An arrow read as `[`, `A` would do whatever `A` does."""
    assert keys_in(typed) == keys
