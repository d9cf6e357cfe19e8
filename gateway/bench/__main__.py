"""`python -m gateway.bench`: the arguments of a benchmark, nothing else."""

import argparse
import sys
from pathlib import Path

from gateway.bench.contenders import PEERS
from gateway.bench.run import PARTS, bench


def main() -> int:
    """Parse the command line and run; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.bench",
        description="measure the gateway's own overhead and its core",
    )
    parser.add_argument("--full", action="store_true", help="five rounds of longer windows")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        choices=[peer.name for peer in PEERS],
        help="measure this one beside the gateway, interleaved; may be given several times",
    )
    parser.add_argument("--json", type=Path, help="where the results go [bench-results/]")
    parser.add_argument("--only", choices=PARTS, help="one part of the measurement [both]")
    chosen = parser.parse_args()
    return bench(full=chosen.full, peers=chosen.peer, json_path=chosen.json, only=chosen.only)


if __name__ == "__main__":
    sys.exit(main())
