"""All tables of the simulator as Markdown: `python -m tests.simulation.tables [section ...]`.

Longer runs than the tests, same seeds, same virtual clock: the figures are the same everywhere.
"""

import sys
from collections.abc import Callable, Iterator
from time import monotonic

from tests.simulation import tables_fairness, tables_gate

SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "gate": tables_gate.gate,
    "speed": tables_gate.speed,
    "outage": tables_gate.outage,
    "fairness": tables_fairness.fairness,
    "idle": tables_fairness.idle,
    "starvation": tables_fairness.starvation,
    "gaming": tables_fairness.gaming,
    "misfits": tables_fairness.misfits,
    "moving": tables_fairness.moving,
    "tiers": tables_fairness.tiers,
}


def main(names: list[str]) -> int:
    """Write the sections named, or all; 2 for a name that there is not."""
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(unknown)}; there are: {', '.join(SECTIONS)}\n")
        return 2
    for name in names or SECTIONS:
        began_s = monotonic()
        for part in SECTIONS[name]():
            sys.stdout.write(f"{part}\n")
            sys.stdout.flush()
        sys.stderr.write(f"{name}: {monotonic() - began_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
