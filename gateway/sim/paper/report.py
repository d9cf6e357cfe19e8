"""Tables as text: Markdown that also reads well in a terminal.

Knows nothing of what the figures mean.
"""

import math
from collections.abc import Sequence


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; all lines have as many cells as there are heads."""
    columns = list(zip(heads, *lines, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    rule = ["-" * width for width in widths]
    rows = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        for line in (heads, rule, *lines)
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def percent(share: float, digits: int = 0) -> str:
    """0.5 -> '50 %'."""
    return f"{100 * share:.{digits}f} %"


def seconds(value: float) -> str:
    """Two significant places below ten; '-' where there is nothing to measure."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
