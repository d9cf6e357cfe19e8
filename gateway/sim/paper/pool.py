"""Many trials over several processes, each result in the place of its request.

Decides nothing but how trials are spread; the figures do not depend on it.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from gateway.sim.paper.trial import Rules, System, Trial, Workload, run_trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The arguments of one trial."""

    system: System
    workload: Workload
    seed: int
    rules: Rules


def trials(tasks: Iterable[Task], processes: int) -> Iterator[Trial]:
    """Run all of them; yields in their order, as soon as each is known.

    Args:
        tasks: what to run.
        processes: at least 1; with 1 it all happens here.
    """
    assert processes >= 1
    if processes == 1:
        yield from map(_run, tasks)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_run, tasks)


def _run(task: Task) -> Trial:
    return run_trial(task.system, task.workload, task.seed, task.rules)
