"""An operator's own file of requests as a workload: CSV with a header, or one JSON object a line.

Columns: arrival_s, prompt_tokens, output_tokens and, if there are, tier (0 first), tenant, user,
output_tokens_max, session. Others are passed over. A file with any bad line is refused as a whole,
with the numbers of its bad lines: half a workload is a wrong one.
"""

import csv
from collections.abc import Iterator
from itertools import islice
from math import inf, isfinite
from pathlib import Path
from typing import Annotated

import msgspec

from gateway.sim.workload.job import Job
from gateway.sim.workload.lines import LINE_BYTES_MAX, lines_of

NAMED_MAX = 10
"""Bad lines that a refusal names."""
NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")
TOO_LONG = f"longer than {LINE_BYTES_MAX} bytes"

Count = Annotated[int, msgspec.Meta(ge=1)]


class OwnRow(msgspec.Struct, frozen=True):
    """One line of the file."""

    arrival_s: Annotated[float, msgspec.Meta(ge=0)]
    prompt_tokens: Count
    output_tokens: Count
    tier: Annotated[int, msgspec.Meta(ge=0)] = 0
    tenant: str = "default"
    user: str = "anonymous"
    output_tokens_max: Count | None = None
    session: str | None = None


class OwnFile:
    """The file, open; it is read through once to be checked, and again whenever it is played."""

    def __init__(
        self,
        path: Path,
        *,
        load: float = 1.0,
        limit: int | None = None,
        tiers: int | None = None,
        tokens_max: int | None = None,
    ) -> None:
        """Check the whole file; its first arrival need not be at 0.

        Args:
            path: of a `.csv` or `.jsonl` file, arrivals in order.
            load: time runs so many times faster.
            limit: no more requests than that.
            tiers: how many there are; a line of another one is bad. None: any.
            tokens_max: requests whose prompt and answer together are longer are refused, and
                counted in `refused`.

        Raises:
            ValueError: what is wrong with the file, line by line.
            OSError: it cannot be read.
        """
        if path.suffix not in (".csv", ".jsonl"):
            raise ValueError(f"{path}: a workload is a .csv or a .jsonl file")
        if not 0 < load < inf:
            raise ValueError(f"load must be positive, got {load}")
        self.path = path
        self.refused = 0
        """Requests refused since `jobs()` was last begun: beyond `tokens_max`."""
        self._load = load
        self._limit = limit
        self._tiers = inf if tiers is None else tiers
        self._tokens_max = inf if tokens_max is None else tokens_max
        self._check()

    def jobs(self) -> Iterator[Job]:
        """In order of arrival, read from the file as they are asked for."""
        self.refused = number = 0
        for line, row in _rows(self.path):
            if number == self._limit:
                return
            if isinstance(row, str):
                raise ValueError(f"{self.path} was changed meanwhile: line {line}: {row}")
            if row.prompt_tokens + row.output_tokens > self._tokens_max:
                self.refused += 1
                continue
            yield Job(
                number=number,
                arrived_at=row.arrival_s / self._load,
                prompt_tokens=row.prompt_tokens,
                output_tokens=row.output_tokens,
                tier=row.tier,
                tenant=row.tenant,
                user=row.user,
                output_tokens_max=row.output_tokens_max,
                session=row.session,
            )
            number += 1

    def ended(self, job: Job, at: float) -> Job | None:
        """None: the file says when everything comes."""
        return None

    def _check(self) -> None:
        faults = self._faults()
        named = list(islice(faults, NAMED_MAX))
        more = sum(1 for _ in faults)
        if named:
            rest = [f"and {more} more bad lines"] if more else []
            raise ValueError("\n".join((f"{self.path}:", *named, *rest)))
        if next(_rows(self.path), None) is None:
            raise ValueError(f"{self.path}: no requests in it")

    def _faults(self) -> Iterator[str]:
        last = 0.0
        for number, row in _rows(self.path):
            if isinstance(row, str):
                yield f"line {number}: {row}"
            elif row.tier >= self._tiers:
                yield f"line {number}: there is no tier {row.tier} of {self._tiers}"
            elif row.arrival_s < last:
                yield f"line {number}: comes before the line above; sort by arrival_s"
            else:
                last = row.arrival_s


def _rows(path: Path) -> Iterator[tuple[int, OwnRow | str]]:
    """Number of each line, with its row or what is wrong with it."""
    return _json_rows(path) if path.suffix == ".jsonl" else _csv_rows(path)


def _json_rows(path: Path) -> Iterator[tuple[int, OwnRow | str]]:
    decoder = msgspec.json.Decoder(OwnRow)
    for number, _, text in lines_of(path):
        if text is None:
            yield number, TOO_LONG
            continue
        try:
            yield number, decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            yield number, str(error)


def _csv_rows(path: Path) -> Iterator[tuple[int, OwnRow | str]]:
    names: list[str] = []
    for number, _, text in lines_of(path):
        if text is None:
            yield number, TOO_LONG
            continue
        try:
            cells = next(csv.reader([text.decode("utf-8-sig")], strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            yield number, str(error)
            continue
        if names:
            yield number, _row(names, cells)
            continue
        names = [cell.strip() for cell in cells]
        missing = [name for name in NEEDED if name not in names]
        if missing:
            yield number, f"the header lacks {', '.join(missing)}"
            return


def _row(names: list[str], cells: list[str]) -> OwnRow | str:
    if len(cells) != len(names):
        return f"{len(cells)} cells under a header of {len(names)}"
    filled = {name: cell.strip() for name, cell in zip(names, cells, strict=True) if cell.strip()}
    try:
        row = msgspec.convert(filled, OwnRow, strict=False)
    except msgspec.ValidationError as error:
        return str(error)
    return row if isfinite(row.arrival_s) else f"arrival_s must be a number, got {row.arrival_s}"
