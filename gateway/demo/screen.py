"""What the demo says and shows: live tables on a terminal, plain lines anywhere else.

Decides when figures are shown. What they are, and how long they go on, is not known here.
"""

import asyncio
import shlex

import orjson
from rich.console import Console
from rich.live import Live

from gateway.demo.load import MODEL, PATH
from gateway.demo.plan import Phase
from gateway.demo.table import as_lines, as_table, title
from gateway.demo.tally import Tally

REFRESH_S = 0.25
LINES_EVERY_S = 2.0


class Screen:
    """Standard output, as the demo uses it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal

    def say(self, *lines: str) -> None:
        """Print lines as they are, so that they can be copied."""
        for line in lines:
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    async def follow(self, phase: Phase, tally: Tally) -> None:
        """Show the figures until cancelled; the last ones stay."""
        if self._is_live:
            await self._follow_live(phase, tally)
        else:
            await self._follow_in_lines(phase, tally)

    async def _follow_live(self, phase: Phase, tally: Tally) -> None:
        clock = asyncio.get_running_loop().time
        began_at = clock()
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    await asyncio.sleep(REFRESH_S)
                    now = clock()
                    table = as_table(phase, tally, elapsed_s=now - began_at, now=now)
                    live.update(table, refresh=True)
            finally:
                now = clock()
                live.update(as_table(phase, tally, elapsed_s=now - began_at, now=now))

    async def _follow_in_lines(self, phase: Phase, tally: Tally) -> None:
        clock = asyncio.get_running_loop().time
        began_at = printed_at = clock()
        self.say(title(phase, 0.0))
        try:
            while True:
                await asyncio.sleep(LINES_EVERY_S)
                printed_at = clock()
                self._say_figures(phase, tally, began_at)
        finally:
            if clock() - printed_at > LINES_EVERY_S / 4:
                self._say_figures(phase, tally, began_at)

    def _say_figures(self, phase: Phase, tally: Tally, began_at: float) -> None:
        now = asyncio.get_running_loop().time()
        self.say(*as_lines(phase, tally, elapsed_s=now - began_at, now=now))


def curl(url: str) -> str:
    """A command line that asks the gateway at `url`, ready for a shell."""
    body = orjson.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 40,
            "stream": True,
        }
    ).decode()
    return (
        f"curl -N {url}{PATH} -H 'content-type: application/json' -H 'x-fairgate-user: you'"
        f" -d {shlex.quote(body)}"
    )
