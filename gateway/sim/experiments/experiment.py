"""An experiment: points times seeds, each cell a run of its own, and medians over the seeds.

Cells are played by as many processes as wanted and put together in their order, so that the report
does not depend on how many there were. What a cell measures is not known here.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, NamedTuple, TypeVar

import msgspec

from gateway.sim.experiments.report import Measured, Report, Row, Value

Knobs = TypeVar("Knobs", bound=msgspec.Struct)
Progress = Callable[[int, int], object]
"""Hears how many cells are done, and how many there are."""

PROCESSES_MAX = 64


class Cell(NamedTuple):
    """One run: where, and by which dice."""

    point: Row
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Generic[Knobs]):
    """One entry of the catalogue."""

    name: str
    about: str
    """One line."""
    knobs: Knobs
    """What can be set, with its defaults."""
    quick: Mapping[str, object]
    """What is set instead where it has to be over in seconds."""
    points: Callable[[Knobs], list[Row]] = field(repr=False)
    measure: Callable[[Knobs, Row, int], Measured] = field(repr=False)
    """A function of a module: it goes to other processes."""
    judge: Callable[[Knobs, list[Row]], list[str]] | None = field(default=None, repr=False)
    """What follows from the rows, in words."""
    seeds: int = 3
    sources: tuple[str, ...] = ()

    def set_to(self, values: Mapping[str, object], *, quick: bool = False) -> Knobs:
        """The knobs with these values, which may be text as a command line has them.

        Raises:
            ValueError: no such knob (the message lists those there are), or not a value for it.
        """
        if not values and not (quick and self.quick):
            return self.knobs
        defaults = msgspec.structs.asdict(self.knobs)
        unknown = [name for name in values if name not in defaults]
        if unknown:
            known = ", ".join(defaults) or "nothing"
            raise ValueError(f"{self.name} has no {', '.join(unknown)}; it takes {known}")
        told = {name: _listed(value, defaults[name]) for name, value in values.items()}
        merged = {**defaults, **(self.quick if quick else {}), **told}
        try:
            return msgspec.convert(merged, type(self.knobs), strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{self.name}: {error}") from error

    def run(
        self,
        values: Mapping[str, object] | None = None,
        *,
        seeds: int | None = None,
        processes: int = 1,
        quick: bool = False,
        progress: Progress | None = None,
    ) -> Report:
        """Play all cells and put them together.

        Args:
            values: of knobs; the others have their defaults.
            seeds: how many, from 0; None: the experiment's own number, or 1 where it is `quick`.
            processes: 1..`PROCESSES_MAX` that play at once; the report is the same for any.
            quick: with less of everything.
            progress: hears after every cell.

        Raises:
            ValueError: see `set_to`; or seeds or processes out of range.
        """
        count = seeds if seeds is not None else 1 if quick else self.seeds
        if count < 1:
            raise ValueError(f"at least one seed, got {count}")
        if not 1 <= processes <= PROCESSES_MAX:
            raise ValueError(f"processes must be 1..{PROCESSES_MAX}, got {processes}")
        knobs = self.set_to(values or {}, quick=quick)
        points = self.points(knobs)
        cells = [Cell(point, seed) for point in points for seed in range(count)]
        found: list[Measured] = []
        for measured in self._played(knobs, cells, processes):
            found.append(measured)
            if progress is not None:
                progress(len(found), len(cells))
        return self._report(knobs, points, count, found)

    def _played(self, knobs: Knobs, cells: list[Cell], processes: int) -> Iterator[Measured]:
        if processes == 1 or len(cells) == 1:
            for cell in cells:
                yield self.measure(knobs, *cell)
            return
        with ProcessPoolExecutor(min(processes, len(cells))) as pool:
            jobs = [pool.submit(self.measure, knobs, *cell) for cell in cells]
            try:
                for job in jobs:
                    yield job.result()
            finally:
                for job in jobs:
                    job.cancel()

    def _report(self, knobs: Knobs, points: list[Row], seeds: int, found: list[Measured]) -> Report:
        rows: list[Row] = []
        for index, point in enumerate(points):
            cells = found[index * seeds : (index + 1) * seeds]
            rows.append({**point, **_medians([cell.figures for cell in cells])})
        first = found[::seeds]
        return Report(
            name=self.name,
            about=self.about,
            parameters=msgspec.to_builtins(knobs),
            seeds=tuple(range(seeds)),
            rows=tuple(rows),
            notes=tuple(self.judge(knobs, rows)) if self.judge else (),
            sources=self.sources,
            distributions=tuple(each for cell in first for each in cell.distributions),
            series=tuple(each for cell in first for each in cell.series),
        )


def _medians(rows: list[Row]) -> dict[str, Value]:
    """Of each figure over the runs; text is that of the first."""
    out: dict[str, Value] = {}
    for name, value in rows[0].items():
        values = [row[name] for row in rows]
        numbers = [each for each in values if not isinstance(each, str)]
        out[name] = float(median(numbers)) if len(numbers) == len(values) else value
    return out


def _listed(value: object, default: object) -> object:
    """A list where the default is one: `1,2,3` on a command line."""
    if isinstance(value, str) and isinstance(default, tuple):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value
