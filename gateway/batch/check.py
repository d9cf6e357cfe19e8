"""The check of a batch's file: line by line, in steps between which the loop is free."""

import asyncio
from dataclasses import dataclass

from gateway.api.threads import in_thread
from gateway.batch.files import Files
from gateway.batch.lines import Fault, Tally, is_blank, parsed
from gateway.batch.missing import model_of
from gateway.batch.reading import LineTooLongError, Slices
from gateway.batch.record import StoredFile

PART_LINES = 500
"""Of each part but the last: what one gateway claims at once."""
FAULTS_MAX = 100
"""As many are told."""
REST_S = 0.002
"""Between two slices, so that a check takes half a processor at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a file holds."""

    total: int
    starts: tuple[tuple[int, int], ...]
    faults: tuple[Fault, ...]
    """Without any it is valid."""
    model: str | None


async def checked(
    files: Files, file: StoredFile, *, endpoint: str, lines_max: int, line_bytes_max: int
) -> Checked:
    """Read all of a file. Raises FilesError."""
    tally = Tally(
        endpoint=endpoint,
        lines_max=lines_max,
        line_bytes_max=line_bytes_max,
        part_lines=PART_LINES,
        faults_max=FAULTS_MAX,
    )
    slices = Slices(files, file, line_bytes_max=line_bytes_max)
    model: str | None = None
    try:
        while not slices.is_over and not tally.is_hopeless:
            lines = await slices.next()
            await in_thread(tally.count, lines, slices.start)
            if model is None and tally.lines and not tally.faults:
                model = _model_of(lines)
            await asyncio.sleep(REST_S)
    except LineTooLongError:
        tally.too_long(tally.number + 1)  # its end was not looked for
    return Checked(
        total=tally.lines, starts=tuple(tally.starts), faults=tally.verdict(), model=model
    )


def _model_of(lines: list[bytes]) -> str | None:
    for data in lines:
        if not is_blank(data):
            return model_of(parsed(data).body)
    return None
