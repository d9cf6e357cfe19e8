"""`python -m gateway.dashboards FOLDER`: writes the dashboards as files that Grafana reads."""

import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.dashboards import fairness, fleet, overview, process
from gateway.dashboards.board import text_of

BOARDS = (overview.BOARD, fairness.BOARD, fleet.BOARD, process.BOARD)
USAGE = "usage: python -m gateway.dashboards FOLDER"


def main(arguments: Sequence[str]) -> int:
    """Write all files; return the exit status."""
    if len(arguments) != 1 or not (folder := Path(arguments[0])).is_dir():
        sys.stderr.write(f"{USAGE}\n")
        return 2
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(text_of(board))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
