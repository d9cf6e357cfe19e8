"""`fairgate demo`: starts everything, goes through the phases, says what they showed, cleans up."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from rich.console import Console

from gateway.demo.children import ChildFailedError, Children
from gateway.demo.load import Load
from gateway.demo.plan import (
    DEFAULT_S,
    LIGHT_USERS,
    Phase,
    PolicyName,
    endless,
    planned,
    policies_shown,
)
from gateway.demo.screen import Screen, curl
from gateway.demo.site import REPLICAS, Site, open_site
from gateway.demo.tally import Tally, Waits
from gateway.demo.verdict import Verdict, verdict_lines

SEED = 7
SETTLE_S = 0.5
"""Between phases: the engines drop what was broken off, and the gateways notice."""
CLOSE_S = 0.5
"""What ending everything takes, within the seconds that were asked for."""
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILED = 1
USAGE = 2


def demo(*, seconds: float | None, policy: str | None) -> int:
    """Run the demo; returns the exit status.

    Args:
        seconds: length of the whole; None: the phases once, then on until interrupted.
        policy: show only this one, `fair` or `fifo`; None: both.
    """
    if policy not in (None, "fair", "fifo"):
        sys.stderr.write(f"--policy is fair or fifo, not {policy}\n")
        return USAGE
    if seconds is not None and not seconds > 0:
        sys.stderr.write("--seconds must be more than 0\n")
        return USAGE
    shown = policies_shown("fifo" if policy == "fifo" else "fair" if policy else None)
    with asyncio.Runner() as runner:
        return runner.run(Demo(shown, seconds, Screen(Console())).run())


class Demo:
    """One run of the demo."""

    def __init__(
        self, shown: Sequence[PolicyName], seconds: float | None, screen: Screen
    ) -> None:
        self._shown = shown
        self._seconds = seconds
        self._screen = screen
        self._random = Random(SEED)  # noqa: S311 - a workload is no secret
        self._interrupt: signal.Signals | None = None
        self._has_verdict = False

    async def run(self) -> int:
        """The exit status; an interrupt after the verdict is how an endless demo ends well."""
        self._end_on_signals()
        try:
            with TemporaryDirectory(prefix="fairgate-demo-") as folder:
                async with Children(Path(folder)) as children:
                    return await self._watched(children)
        except asyncio.CancelledError:
            if self._interrupt is None:
                raise
            return 0 if self._has_verdict else 128 + self._interrupt

    def _end_on_signals(self) -> None:
        task = asyncio.current_task()
        assert task is not None

        def end(number: signal.Signals) -> None:
            # Only once: a second Ctrl-C must not break off the ending of the children.
            if self._interrupt is None:
                self._interrupt = number
                task.cancel()

        for number in INTERRUPTS:
            asyncio.get_running_loop().add_signal_handler(number, end, number)

    async def _watched(self, children: Children) -> int:
        """Run while all children live."""
        began_at = asyncio.get_running_loop().time()
        status = FAILED
        try:
            site = await open_site(children, self._shown)
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(children.watch())
                status = await self._show(site, began_at)
                watch.cancel()
        except* ChildFailedError as group:
            for failure in group.exceptions:
                sys.stderr.write(f"the demo failed: {failure}\n")
            status = FAILED
        return status

    async def _show(self, site: Site, began_at: float) -> int:
        self._introduce(site)
        clock = asyncio.get_running_loop().time
        spent_s = clock() - began_at
        total_s = DEFAULT_S if self._seconds is None else self._seconds
        pauses_s = SETTLE_S * len(self._shown) + CLOSE_S
        phases = planned(self._shown, total_s - spent_s - pauses_s)
        tallies = []
        for phase in phases:
            if tallies:
                await asyncio.sleep(SETTLE_S)
            tallies.append(await self._run_phase(site, phase))
        ...
        return 0
