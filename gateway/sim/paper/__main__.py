"""`python -m gateway.sim.paper`: the paper's tables again, or what becomes of them when corrected.

Without arguments the 18 rows; `--ablation` takes the model's liberties away one by one, and
`--isolation` shows what tiers are worth on engines that could exist.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

from gateway.sim.paper.ablation import Ablation, Isolation, paper_ablation, paper_isolation
from gateway.sim.paper.run import SEEDS, Report, paper_tables


def main(arguments: list[str] | None = None) -> int:
    """Prints a table; returns 0."""
    parser = ArgumentParser(prog="python -m gateway.sim.paper", description=__doc__)
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--isolation", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write everything there, too")
    options = parser.parse_args(arguments)
    run: Callable[[list[int], int], Report | Ablation | Isolation] = paper_tables
    if options.ablation:
        run = paper_ablation
    elif options.isolation:
        run = paper_isolation
    report = run(options.seeds, options.processes)
    sys.stdout.write(report.text() + "\n")
    if options.json:
        options.json.write_text(report.to_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
