"""What a worker process is told by the one above it: its place, its sockets, and how to answer.

It goes through the environment, under a name that is none of the settings.
"""

import json
import os
import select
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VARIABLE = "_FAIRGATE_WORKER"
READY_VARIABLE = "_FAIRGATE_READY"
"""Holds the descriptor into which a worker writes one byte once it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """One worker's place among several."""

    place: int
    of: int
    """How many places there are."""
    sockets: tuple[int, ...]
    """Descriptors that are bound to where clients come."""
    operators: tuple[int, ...]
    """The same for operators, where they have a listener of their own."""
    alive: int
    """A pipe that ends when the process above does."""
    folder: Path
    """Where the workers of one machine find one another; nobody else can look there."""
    admin_sha256: str | None
    """Hash of the admin key that was made for all of them."""

    @property
    def socket(self) -> Path:
        """Where this process listens to its siblings."""
        return self.folder / f"{os.getpid()}.sock"

    def written(self) -> str:
        """As it stands in the environment."""
        return json.dumps(asdict(self) | {"folder": str(self.folder)})

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` from a thread once the process above is gone."""
        threading.Thread(target=self._await_end, args=(ended,), name="alive", daemon=True).start()

    def _await_end(self, ended: Callable[[], None]) -> None:
        select.select([self.alive], [], [])
        ended()


@dataclass(frozen=True, slots=True)
class Report:
    """How a worker says that it serves."""

    descriptor: int

    def serves(self) -> None:
        """Say it, once. Whoever does not listen any more is not told."""
        with suppress(OSError):
            os.write(self.descriptor, b"1")
        os.close(self.descriptor)


def berth_in(environ: Mapping[str, str]) -> tuple[Berth, Report] | None:
    """This process's place; None: it is no worker."""
    found = environ.get(VARIABLE)
    if found is None:
        return None
    told: dict[str, Any] = json.loads(found)
    berth = Berth(
        place=told["place"],
        of=told["of"],
        sockets=tuple(told["sockets"]),
        operators=tuple(told["operators"]),
        alive=told["alive"],
        folder=Path(told["folder"]),
        admin_sha256=told["admin_sha256"],
    )
    return berth, Report(int(environ[READY_VARIABLE]))
