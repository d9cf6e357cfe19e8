"""`python -m gateway.sim`: play fault schedules by their numbers, and say what was found.

`python -m gateway.sim 4711` replays one and prints what happens in it, and the smallest part of it
that still fails; `--count 10000 --processes 2` plays that many from there on.
"""

import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from gateway.sim.draw import schedule_of
from gateway.sim.run import Outcome, play, run, shrunk
from gateway.sim.tally import Tally

CHUNK = 25
"""Seeds that a process plays before it reports."""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 where all that must hold held, else 1."""
    parser = ArgumentParser(prog="python -m gateway.sim", description=__doc__)
    parser.add_argument("seed", type=int, help="number of the first schedule")
    parser.add_argument("--count", type=int, default=1, help="so many, one after another")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.count == 1:
        return _replay(options.seed)
    return _many(range(options.seed, options.seed + options.count), options.processes)


def outcomes(seeds: Iterable[int], processes: int = 1) -> Iterator[Outcome]:
    """Play all of them, in order, over so many processes."""
    if processes == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run, seeds, chunksize=CHUNK)


def _many(seeds: range, processes: int) -> int:
    began_at, tally = time.monotonic(), Tally()
    for outcome in outcomes(seeds, processes):
        tally.add(outcome)
        if outcome.failure:
            _say(f"seed {outcome.seed}: {outcome.failure}\n  {replay_command(outcome.seed)}")
    _say(tally.text(time.monotonic() - began_at))
    return 1 if tally.failures else 0


def replay_command(seed: int | None) -> str:
    """What shows that schedule again."""
    return f"python -m gateway.sim {seed}"


def _replay(seed: int) -> int:
    schedule = schedule_of(seed)
    outcome = play(schedule)
    if outcome.failure:
        schedule = shrunk(schedule, fails=lambda fewer: bool(play(fewer).failure))
        _say(f"failed: {outcome.failure}\nof it this is enough, which fails by")
        outcome = play(schedule)
        _say(outcome.failure)
    for server in schedule.servers:
        _say(str(server))
    for ask in schedule.asks:
        _say(str(ask))
    for fault in schedule.faults:
        _say(str(fault))
    _say(str(outcome))
    return 1 if outcome.failure else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
