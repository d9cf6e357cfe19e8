"""What the demo prints: the table, the lines, and a command that can be copied."""

import asyncio
import io
import shlex

import orjson
import pytest
from rich.console import Console

from gateway.demo import screen
from gateway.demo.plan import LIGHT_USERS, Phase, endless, planned
from gateway.demo.screen import Screen, curl
from gateway.demo.table import as_lines, as_table, rows, title
from gateway.demo.tally import Tally

FLOOD: Phase = planned(("fair",), 35.0)[1]


@pytest.fixture
def tally() -> Tally:
    """One answered request of alice, one of batch-bot that waits since instant 0."""
    tally = Tally(user.name for user in FLOOD.users)
    alice = tally.accounts["alice"]
    alice.begin(alice.send(0.0), 0.25)
    alice.tokens += 20
    tally.accounts["batch-bot"].send(0.0)
    return tally


def printed(table: object, *, width: int = 100) -> str:
    """What a terminal of `width` columns would show."""
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_user_has_a_row_with_all_figures(tally: Tally) -> None:
    """Who is compared with whom must be there to be seen."""
    alice, bob, _, bot = rows(tally, 4.0)
    assert alice.cells == ("alice", "1", "0", "0.25 s", "0.25 s", "100%", "0")
    assert bob.mean_wait == bob.p95_wait == "-"
    assert (bot.waiting, bot.mean_wait) == ("1", ">= 4.00 s")


def test_the_table_fits_a_terminal_of_eighty_columns(tally: Tally) -> None:
    """Cut-off columns are the last impression of many a demo."""
    text = printed(as_table(FLOOD, tally, elapsed_s=4.0, now=4.0), width=80)
    assert "share of tokens" in text
    assert "…" not in text


def test_failures_are_shown_once_there_are_any(tally: Tally) -> None:
    """A demo that drops requests in silence would be believed."""
    assert "failed" not in printed(as_table(FLOOD, tally, elapsed_s=4.0, now=4.0))
    tally.fail("bob", tally.accounts["bob"].send(1.0), "503: no replica")
    text = printed(as_table(FLOOD, tally, elapsed_s=4.0, now=4.0))
    assert "failed" in text
    assert "503: no replica" in text
    lines = as_lines(FLOOD, tally, elapsed_s=4.0, now=4.0)
    assert lines[-1] == "first failure: 503: no replica"
    assert lines[1].endswith("failed 1")


def test_lines_name_phase_second_and_user(tally: Tally) -> None:
    """A log is read by grep."""
    first = as_lines(FLOOD, tally, elapsed_s=4.0, now=4.0)[0]
    assert first.startswith("[fair  4.0 s] alice ")
    assert "mean wait    0.25 s" in first


def test_the_title_says_how_long_it_goes_on() -> None:
    """Who watches wants to know whether to wait or to press Ctrl-C."""
    assert title(FLOOD, 3.2) == "fair: a flood, through the fair gateway (3 s of 25 s)"
    assert "until Ctrl-C" in title(endless(("fair",)), 3.2)


def test_the_command_survives_the_shell() -> None:
    """It is there to be copied; a lost quote would be the first thing a newcomer sees fail."""
    words = shlex.split(curl("http://127.0.0.1:8080"))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8080/v1/chat/completions"]
    body = orjson.loads(words[words.index("-d") + 1])
    assert body["stream"] is True
    assert body["model"] == "demo"


def test_text_is_printed_as_it_is() -> None:
    """A wrapped or coloured command cannot be copied; brackets are no markup."""
    file = io.StringIO()
    Screen(Console(file=file, width=20)).say("a [bold]very[/bold] long line that is not wrapped")
    assert file.getvalue() == "a [bold]very[/bold] long line that is not wrapped\n"


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_the_figures_stay_when_a_phase_ends(
    is_terminal: bool, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a phase came to is what people scroll back for; a log must be free of escapes."""
    monkeypatch.setattr(screen, "REFRESH_S", 0.01)
    monkeypatch.setattr(screen, "LINES_EVERY_S", 0.01)
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=is_terminal, _environ={"TERM": "xterm"})
    follow = asyncio.create_task(Screen(console).follow(FLOOD, tally))
    await asyncio.sleep(0.05)
    follow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follow
    last = file.getvalue().rpartition("alice")[2]
    assert all(user.name in last for user in LIGHT_USERS[1:])
    assert ("\x1b[" in file.getvalue()) is is_terminal
