"""`fairgate demo`: starts everything, goes through the phases, says what they showed, cleans up."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from rich.console import Console

from gateway.demo.children import ChildFailedError, Children
from gateway.demo.load import Load
from gateway.demo.plan import DEFAULT_S, Phase, PolicyName, endless, planned, policies_shown
from gateway.demo.screen import Screen, curl
from gateway.demo.site import REPLICAS, Site, start_site
from gateway.demo.tally import Tally
from gateway.demo.verdict import Outcome, outcome_of, verdict_lines, verdict_of

SEED = 7
SETTLE_S = 0.3
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

    def __init__(self, shown: Sequence[PolicyName], seconds: float | None, screen: Screen) -> None:
        self._shown = shown
        self._seconds = seconds
        self._screen = screen
        self._random = Random(SEED)
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
            site = await start_site(children, self._shown)
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(children.watch())
                await site.wait_ready()
                status = await self._show(site, began_at)
                watch.cancel()
        except* ChildFailedError as group:
            for failure in group.exceptions:
                sys.stderr.write(f"the demo failed: {failure}\n")
            status = FAILED
        return status

    async def _show(self, site: Site, began_at: float) -> int:
        """All phases and the verdict; without an end of its own, then the flood until one comes."""
        self._introduce(site)
        spent_s = asyncio.get_running_loop().time() - began_at + CLOSE_S
        total_s = DEFAULT_S if self._seconds is None else self._seconds
        outcomes = []
        for phase in planned(self._shown, total_s - spent_s - SETTLE_S * len(self._shown)):
            outcomes.append(await self._run_phase(site, phase))
            await asyncio.sleep(SETTLE_S)
        verdict = verdict_of(outcomes)
        complaints = sorted({outcome.complaint for outcome in outcomes if outcome.complaint})
        if verdict is None and complaints:
            sys.stderr.write(f"no figures, since requests failed: {'; '.join(complaints)}\n")
            return FAILED
        self._has_verdict = True
        if verdict is None:
            self._screen.say("", "Too little was answered for figures: this took too short a time.")
        else:
            self._screen.say("", *verdict_lines(verdict))
        if self._seconds is None:
            self._screen.say("", "The load goes on until Ctrl-C.")
            await self._run_phase(site, endless(self._shown))
        return 0

    def _introduce(self, site: Site) -> None:
        url = site.urls[self._shown[0]]
        self._screen.say(
            f"Two emulated replicas behind fairgate on {url}; API docs: {url}/docs",
            f"Watch it in a browser: {url}/console",
            *(f"The same replicas behind --policy {policy}: {site.urls[policy]}"
              for policy in self._shown[1:]),
            "While this runs, ask it yourself:",
            f"  {curl(url)}",
            "",
        )  # fmt: skip

    async def _run_phase(self, site: Site, phase: Phase) -> Outcome:
        """Load and figures side by side until the phase is over."""
        clock = asyncio.get_running_loop().time
        tally = Tally(user.name for user in phase.users)
        began_at = clock()
        async with asyncio.TaskGroup() as tasks:
            follow = tasks.create_task(self._screen.follow(phase, tally))
            await Load(site.urls[phase.policy], phase, tally, self._random).run()
            follow.cancel()
        ended_at = clock() if phase.length_s is None else began_at + phase.length_s
        return outcome_of(phase, tally, replicas=REPLICAS, began_at=began_at, ended_at=ended_at)
