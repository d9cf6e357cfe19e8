"""Tables as Markdown, and figures as short words."""

from collections.abc import Iterable, Sequence
from math import isinf


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A heading and a table; the first column is left-aligned, the others right."""
    lines = [
        f"### {title}",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'|'.join(['---', *['---:'] * (len(heads) - 1)])}|",
        *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def seconds(value: float) -> str:
    """Two digits below ten seconds, whole ones above a hundred."""
    if isinf(value):
        return "-"
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def milliseconds(value_s: float) -> str:
    """Whole ones."""
    return "-" if isinf(value_s) else f"{value_s * 1e3:.0f}"


def percent(share: float) -> str:
    """One digit."""
    return f"{share * 100:.1f} %"


def change(ratio: float) -> str:
    """How much more or less than 1, in percent, with its sign."""
    return f"{(ratio - 1) * 100:+.1f} %"
