"""Runs the gateway's command in a prepared process: with a log level, or with a profiler inside.

Run by its path, so that it prepares builds of the gateway that lack it, and therefore without an
import from this package: `python gateway/bench/within.py --log-level INFO -- serve --config FILE`.
A profiler looks between SIGUSR1 and SIGUSR2, and then leaves what it saw in a file.
"""

import argparse
import cProfile
import dis
import json
import logging
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Protocol

START, STOP = signal.SIGUSR1, signal.SIGUSR2
KINDS = SAMPLES, CALLS = ("samples", "calls")
INTERVAL_S = 0.001
"""Asked for; the kernel looks at CPU timers on its own ticks, often 250 a second."""
STACK_MAX = 200
ENTRY = dis.opmap["RESUME"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One function: shares of all CPU time, its own and with what it called; how often called."""

    name: str
    place: str
    own_share: float
    total_share: float
    calls: int | None = None
    """None where calls are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a profiler saw, the dearest function first."""

    costs: list[Cost]
    samples: int | None = None
    """None where calls were counted."""


class Profiler(Protocol):
    """Can be switched on and off within the process that it looks at."""

    def start(self) -> None:
        """Look from now on."""

    def stop(self) -> Seen:
        """Look no more; what was seen."""


class Sampler:
    """Counts the main thread's stacks, one whenever the process has used some CPU time.

    CPython runs a signal's function at the next point where it looks for signals. After a call into
    C that is the calling frame, as wanted; where C calls Python, as an event loop does, it is the
    first instruction of the callee, which has done nothing yet: such a sample belongs to whoever
    called it.
    """

    def __init__(self, set_timer: Callable[[int, float, float], object] = signal.setitimer) -> None:
        self._set_timer = set_timer
        self._samples = 0
        self._own: Counter[tuple[CodeType, int]] = Counter()
        self._total: Counter[CodeType] = Counter()

    def start(self) -> None:
        """Sample from now on."""
        signal.signal(signal.SIGPROF, self.sample)
        self._set_timer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> Seen:
        """Sample no more; the cost of every function that was seen."""
        self._set_timer(signal.ITIMER_PROF, 0.0, 0.0)
        costs = costs_of(self._own, self._total, samples=self._samples)
        return Seen(costs=costs, samples=self._samples)

    def sample(self, number: int, frame: FrameType | None) -> None:
        """Count one stack, from the frame that was interrupted."""
        frame = _charged(frame)
        if frame is None:
            return
        self._samples += 1
        self._own[frame.f_code, frame.f_lineno] += 1
        seen: set[CodeType] = set()
        while frame is not None and len(seen) < STACK_MAX:
            seen.add(frame.f_code)
            frame = frame.f_back
        self._total.update(seen)


def costs_of(
    own: Mapping[tuple[CodeType, int], int], total: Mapping[CodeType, int], *, samples: int
) -> list[Cost]:
    """One cost a function, with the line at which most of its own samples were."""
    lines: dict[CodeType, Counter[int]] = {code: Counter() for code in total}
    for (code, line), count in own.items():
        lines[code][line] += count
    costs = [
        Cost(
            name=code.co_qualname,
            place=f"{code.co_filename}:{_hottest(lines[code], code.co_firstlineno)}",
            own_share=sum(lines[code].values()) / samples,
            total_share=count / samples,
        )
        for code, count in total.items()
    ]
    return sorted(costs, key=lambda cost: (-cost.own_share, -cost.total_share, cost.place))


def _hottest(lines: Counter[int], otherwise: int) -> int:
    return lines.most_common(1)[0][0] if lines else otherwise


def _charged(frame: FrameType | None) -> FrameType | None:
    """The frame that used the time: its caller's where this one has not begun."""
    if frame is None:
        return None
    code, at = frame.f_code.co_code, frame.f_lasti
    has_begun = not 0 <= at < len(code) or code[at] != ENTRY
    return frame if has_begun or frame.f_back is None else frame.f_back


class CallProfiler:
    """Counts and times every call, those into C too; that costs more than many of the calls."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    def start(self) -> None:
        """Count from now on."""
        self._profile.enable()

    def stop(self) -> Seen:
        """Count no more; the cost of every function that was called."""
        self._profile.disable()
        entries = self._profile.getstats()
        whole_s = sum(entry.inlinetime for entry in entries) or 1.0
        costs = [
            Cost(
                name=_name(entry.code),
                place=_place(entry.code),
                own_share=entry.inlinetime / whole_s,
                total_share=entry.totaltime / whole_s,
                calls=entry.callcount,
            )
            for entry in entries
        ]
        costs.sort(key=lambda cost: (-cost.own_share, cost.place, cost.name))
        return Seen(costs=costs)


def _name(code: CodeType | str) -> str:
    return code if isinstance(code, str) else code.co_qualname


def _place(code: CodeType | str) -> str:
    return "C" if isinstance(code, str) else f"{code.co_filename}:{code.co_firstlineno}"


def switch_by_signals(profiler: Profiler, out: Path) -> None:
    """Let two signals switch `profiler`; after the second `out` appears, whole."""

    def stop(*_: object) -> None:
        part = out.with_suffix(".part")
        part.write_text(json.dumps(asdict(profiler.stop())))
        part.rename(out)

    signal.signal(START, lambda *_: profiler.start())
    signal.signal(STOP, stop)


def main() -> None:
    """Prepare this process and become the gateway's command."""
    parser = argparse.ArgumentParser(prog="within.py")
    parser.add_argument("--log-level", default="WARNING", help="of the root logger")
    parser.add_argument("--profile", choices=KINDS)
    parser.add_argument("--out", type=Path, help="where the profile goes")
    parser.add_argument("command", nargs="+", help="the gateway's arguments, behind --")
    chosen = parser.parse_args()
    # First come: whatever the command sets up later leaves this as it is.
    logging.basicConfig(level=chosen.log_level, format="%(levelname)s %(name)s: %(message)s")
    if chosen.profile is not None:
        profiler = CallProfiler() if chosen.profile == CALLS else Sampler()
        switch_by_signals(profiler, chosen.out)
    sys.argv = ["fairgate", *chosen.command]
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
