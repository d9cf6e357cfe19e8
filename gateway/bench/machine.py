"""What the figures were measured on: processor, kernel and the versions of what took part."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gateway import __version__

PACKAGES = ("uvicorn", "uvloop", "httptools", "fastapi", "orjson", "httpx")
BUSY_SHARE = 0.5
"""A load average above this share of the cores before the run makes latencies doubtful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The place and the parts of one measurement."""

    processor: str
    cores: int
    kernel: str
    load_average: float
    """Of the minute before the run."""
    versions: dict[str, str]

    @property
    def is_busy(self) -> bool:
        """Whether something else was running before the run began."""
        return self.load_average > BUSY_SHARE * self.cores


def this_machine() -> Machine:
    """Describe where this runs, before anything is started."""
    return Machine(
        processor=processor_named(Path("/proc/cpuinfo").read_text()),
        cores=os.cpu_count() or 1,
        kernel=platform.release(),
        load_average=os.getloadavg()[0],
        versions={
            "fairgate": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
    )


def processor_named(cpuinfo: str) -> str:
    """The model name in the text of /proc/cpuinfo; the architecture where there is none."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
