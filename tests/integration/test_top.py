"""`fairgate top` before a real gateway: one picture, lines of JSON, and a terminal of its own."""

import asyncio
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.core.messages import Arrived
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import running_held_engine
from tests.support.parts import a_request

WAITING = 10_000
USERS = 500
SIZE = struct.pack("HHHH", 24, 80, 0, 0)
WITHIN_S = 30.0


@pytest.fixture
async def crowded() -> AsyncIterator[Running]:
    """A gateway with ten thousand requests waiting before one slot."""
    async with (
        running_held_engine(1) as engine,
        running_gateway({"url": engine.url, "max_num_seqs": 1}) as running,
    ):
        yield running


async def typed(*words: str, url: str, status: int = 0) -> str:
    """What the command prints, while the gateway goes on."""
    command = ["top", "--gateway", url, *words]
    done = await asyncio.to_thread(CliRunner().invoke, app, command, env={"COLUMNS": "80"})
    assert done.exit_code == status, done.output
    return done.output


def fill(running: Running) -> None:
    """As many wait as may."""
    scheduler, now = running.gateway.scheduler, running.gateway.clock()
    for number in count():
        if len(scheduler.waiting) == WAITING:
            return
        request = a_request(
            f"id{number}", model="raw", tier=2 + number % 2, tenant=f"tenant{number % 50}",
            user=f"user{number % USERS}", arrived_at=now,
        )  # fmt: skip
        scheduler.handle(Arrived(request), now)


async def test_ten_thousand_that_wait_are_one_small_answer(crowded: Running) -> None:
    """The picture is needed most when there is most of it."""
    fill(crowded)
    running = len(crowded.gateway.scheduler.granted)
    told: dict[str, Any] = json.loads(await typed("--once", "--json", url=crowded.url))
    assert (told["waiting"], told["running"]) == (WAITING, running)
    assert sum(tier["waiting"] for tier in told["tiers"]) == WAITING
    assert (len(told["users"]), told["users_more"]) == (20, USERS - 20)
    assert all(each["waiting"] + each["running"] >= 20 for each in told["users"])
    assert len(told["tenants"]) == 20
    async with client(crowded) as http:
        answer = await http.get("/admin/v1/overview/users", params={"limit": 100})
    assert len(answer.content) < 64 << 10
    said = await typed("--once", url=crowded.url)
    assert f"waiting {WAITING}" in said
    assert all(len(each) <= 80 for each in said.splitlines() if not each.startswith("fairgate"))


async def test_a_gateway_that_is_not_there_is_one_line() -> None:
    """A script wants a status, and its owner a reason."""
    said = await typed("--once", url="http://127.0.0.1:1", status=1)
    assert "does not answer" in said
    assert len(said.splitlines()) == 1


class Terminal:
    """A terminal of 80 by 24 with `fairgate top` in it."""

    def __init__(self, master: int, process: asyncio.subprocess.Process) -> None:
        self._master = master
        self.process = process
        self.seen = ""

    def read(self) -> None:
        """What came meanwhile."""
        with suppress(BlockingIOError, OSError):
            while part := os.read(self._master, 1 << 16):
                self.seen += part.decode(errors="replace")

    async def shows(self, text: str) -> None:
        """Wait until this stands there, from now on."""

        def is_there() -> bool:
            self.read()
            return text in self.seen

        try:
            await eventually(is_there, WITHIN_S)
        except TimeoutError:
            raise AssertionError(f"{text!r} is not shown: {self.seen!r}") from None

    def press(self, keys: bytes) -> None:
        """Somebody presses keys, and looks at what comes then."""
        self.read()
        self.seen = ""
        os.write(self._master, keys)


async def test_it_is_followed_in_a_terminal_which_is_left_as_it_was(crowded: Running) -> None:
    """Over SSH there is no browser; and a terminal without echo is a lost one."""
    fill(crowded)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, SIZE)
    os.set_blocking(master, False)
    before = termios.tcgetattr(slave)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "top", "--gateway", crowded.url, "--interval-s", "0.5"),
        stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    try:
        terminal = Terminal(master, process)
        await terminal.shows(f"waiting {WAITING}")
        terminal.press(b"u")
        await terminal.shows("user0")
        terminal.press(b"\x1b[B")
        await terminal.shows("users 2/")
        terminal.press(b"r")
        await terminal.shows("why closed")
        terminal.press(b"q")
        assert await asyncio.wait_for(process.wait(), WITHIN_S) == 0
        assert termios.tcgetattr(slave) == before
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)
        os.close(slave)
