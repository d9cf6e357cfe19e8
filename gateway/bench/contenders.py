"""The programs that can stand between client and engine: what each is, and how ours is set up.

Every one gets a single worker and a single upstream; what it costs is measured elsewhere.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.bench.launch import OWN_PATH, environment
from gateway.bench.replies import MODEL

VERSION_WAIT_S = 20.0
OPEN_SEQUENCES = 4096
"""More than any scenario keeps open, so that the gate never makes a request wait."""
WITHIN = str(Path(__file__).with_name("within.py"))
LOG_LEVELS = ("info", "warning", "error")
TELL_VERSION = """
import sys
import gateway.app
ours = [m for name, m in sys.modules.items() if name.partition(".")[0] == "gateway"]
compiled = sum((m.__file__ or "").endswith((".so", ".pyd")) for m in ours)
how = f"{compiled} of {len(ours)} modules compiled" if compiled else "not compiled"
print(gateway.__version__, f"({how}), Python {sys.version.split()[0]}")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a contender runs: a folder of its own, ports of its own, the engine's, the key."""

    folder: Path
    port: int
    upstream_port: int
    spare_port: int
    """For whatever else it insists on listening on."""
    key: str
    log_level: str = "warning"
    """One of `LOG_LEVELS`."""

    def write(self, name: str, text: str) -> str:
        """Write a configuration file; return its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One gateway to measure. `prepare` writes its files and returns the command."""

    name: str
    binary: str
    prepare: Callable[[str, Site], list[str]]
    install: str
    """What to say to whoever lacks it."""
    packages: tuple[str, ...] = ()
    """What pip installs; empty where it comes another way."""
    is_name_shared: bool = False
    home: str = ""
    """The contender whose folder it shares: the same program with other options."""
    """Other programs have the same name: it is taken only from a folder that names it."""
    version_arguments: tuple[str, ...] = ("--version",)
    ready_path: str = "/v1/models"
    python_path: tuple[str, ...] = ()
    """Where Python looks first; without one the caller's PYTHONPATH does not reach it either."""

    @property
    def variable(self) -> str:
        """The environment variable that names the program."""
        return f"BENCH_{self.name.upper().replace('-', '_')}"

    def version(self, program: str) -> str:
        """As its package says, else the first line with a digit that it prints about itself."""
        return self._installed_version(program) or self._told_version(program)

    def _installed_version(self, program: str) -> str | None:
        """Of the package in the program's virtual environment; None where it is in none."""
        for package in self.packages:
            name = package.partition("[")[0].replace("-", "_")
            folder = Path(program).parent.parent / "lib"
            for found in folder.glob(f"python*/site-packages/{name}-*.dist-info"):
                return found.name.removesuffix(".dist-info").partition("-")[2]
        return None

    def _told_version(self, program: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603 - the operator names the program
                [program, *self.version_arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(os.environ, python_path=self.python_path),
                timeout=VERSION_WAIT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return "unknown"
        lines = done.stdout.decode(errors="replace").splitlines()
        return next((line.strip()[:80] for line in lines if any(map(str.isdigit, line))), "unknown")


def fairgate_config(site: Site) -> dict[str, object]:
    """The gateway's settings: auth, scheduling, metrics and accounting on, the gate wide open."""
    replica = {
        "url": f"http://127.0.0.1:{site.upstream_port}",
        "max_num_seqs": OPEN_SEQUENCES,
    }
    key = {
        "tenant": "bench",
        "user": "bench",
        "tier": "standard",
        "key_sha256": hashlib.sha256(site.key.encode()).hexdigest(),
    }
    return {
        "listen": {"host": "127.0.0.1", "port": site.port},
        "models": [{"name": MODEL, "replicas": [replica]}],
        "tenants": [{"name": "bench", "users": {"bench": {"weight": 1}}}],
        "keys": [key],
    }


def fairgate_arguments(site: Site) -> list[str]:
    """What follows the command's name."""
    # JSON is YAML, so that no YAML writer is needed.
    config = site.write("fairgate.yaml", json.dumps(fairgate_config(site), indent=2))
    return ["serve", "--config", config]


def _fairgate(program: str, site: Site) -> list[str]:
    level = site.log_level.upper()
    # Its own default is warnings only; for a line a request the level is set before it starts.
    within = [WITHIN, "--log-level", level, "--"]
    start = ["-m", "gateway"] if level == "WARNING" else within
    return [program, *start, *fairgate_arguments(site)]


FAIRGATE = Contender(
    name="fairgate",
    binary=sys.executable,
    prepare=_fairgate,
    install="it is this package",
    version_arguments=("-c", TELL_VERSION),
    ready_path="/readyz",
    python_path=OWN_PATH,
)


def fairgate_build(folder: Path, *, name: str = FAIRGATE.name) -> Contender:
    """The gateway as the package in `folder` has it; raises ValueError when there is none."""
    if not (folder / "gateway" / "__init__.py").exists():
        raise ValueError(f"there is no package `gateway` in {folder}")
    return replace(FAIRGATE, name=name, python_path=(str(folder.resolve()),))


def stale_copies(folder: Path, sources: Path) -> Sequence[str]:
    """Modules in the compiled `folder` whose copied source is not the one in `sources`."""
    return [
        relative
        for parent, _, files in os.walk(folder / "gateway")
        for each in files
        if each.endswith(".py")
        and (relative := str((Path(parent) / each).relative_to(folder)))
        and _is_other(Path(parent) / each, sources / relative)
    ]


def _is_other(copy: Path, source: Path) -> bool:
    return not source.exists() or copy.read_bytes() != source.read_bytes()
