"""What an experiment found: rows of a table, and what figures are drawn from; as text and as JSON.

Knows nothing of how anything was found. The same findings give the same bytes.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from gateway import __version__

WIDTH_MAX = 10_000

Value = str | int | float
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """TTFT and TPOT of one tier in one case, as evenly spaced quantiles from 0 to 1."""

    case: str
    tier: int
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Something of one case over time."""

    case: str
    kind: str
    """`share`: of all service, 0..1; `gap`: between the best and the worst served, in tokens."""
    name: str
    every_s: float
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run, or one search, gave."""

    figures: Row
    distributions: tuple[Distribution, ...] = ()
    series: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that an experiment found."""

    name: str
    about: str
    parameters: Mapping[str, object]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    """Medians over the seeds."""
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    distributions: tuple[Distribution, ...] = field(default=(), repr=False)
    series: tuple[Series, ...] = field(default=(), repr=False)

    def table(self) -> Table:
        """The rows, for a terminal."""
        table = Table(title=f"{self.name}: {self.about}", title_justify="left", box=box.SIMPLE_HEAD)
        for name in self.columns():
            is_text = any(isinstance(row.get(name), str) for row in self.rows)
            # A name may be broken between words; a figure never.
            words = (*name.split(), *(shown(row.get(name, "")) for row in self.rows))
            table.add_column(
                name, justify="left" if is_text else "right", min_width=max(map(len, words))
            )
        for row in self.rows:
            table.add_row(*(shown(row.get(name, "")) for name in self.columns()))
        return table

    def columns(self) -> Sequence[str]:
        """Names of all figures, in the order in which they first come."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_json(self) -> str:
        """Everything; what is infinite or no number is null."""
        told = {
            "experiment": self.name,
            "about": self.about,
            "fairgate": __version__,
            "python": platform.python_version(),
            "parameters": self.parameters,
            "seeds": self.seeds,
            "rows": self.rows,
            "notes": self.notes,
            "sources": self.sources,
            "distributions": [asdict(each) for each in self.distributions],
            "series": [asdict(each) for each in self.series],
        }
        return json.dumps(_plain(told), allow_nan=False, indent=1) + "\n"


def needed_width(table: Table, console: Console) -> int:
    """Columns of characters below which figures of the table would be cut."""
    options = console.options.update(max_width=WIDTH_MAX)
    return Measurement.get(console, options, table).minimum


def shown(value: Value) -> str:
    """A figure as a table has it: three digits that count."""
    if not isinstance(value, float):
        return str(value)
    if not isfinite(value):
        return "-"
    return (
        f"{value:.3f}"
        if abs(value) < 10
        else f"{value:.1f}"
        if abs(value) < 1000
        else f"{value:.0f}"
    )


def _plain(told: object) -> object:
    if isinstance(told, float):
        return told if isfinite(told) else None
    if isinstance(told, Mapping):
        return {str(key): _plain(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [_plain(value) for value in told]
    return told
