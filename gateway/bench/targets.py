"""What loads are sent to: the fake engine and the contenders before it, started for one round."""

import secrets
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.bench.contenders import Contender, Site
from gateway.bench.figures import Run
from gateway.bench.launch import OWN_PATH, Cores, free_port, launched, run_load, wait_ready
from gateway.bench.load_spec import LoadSpec

DIRECT = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contender whose program was found."""

    contender: Contender
    program: str

    @property
    def name(self) -> str:
        """The contender's name."""
        return self.contender.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that answers now: a started contender, or the engine itself."""

    name: str
    port: int
    pid: int
    key: str = ""


def start_engine(stack: ExitStack, folder: Path, *, core: int | None) -> Target:
    """The fake engine, until `stack` ends; raises StartFailed."""
    port = free_port()
    command = [sys.executable, "-m", "gateway.bench.upstream", "--port", str(port)]
    process = stack.enter_context(
        launched(command, folder=folder, name="engine", core=core, python_path=OWN_PATH)
    )
    wait_ready(process, port=port, path="/health", key="", log=folder / "engine.log")
    return Target(name=DIRECT, port=port, pid=process.pid)


def start_contender(
    stack: ExitStack,
    folder: Path,
    entrant: Entrant,
    *,
    engine: Target,
    core: int | None,
    log_level: str,
) -> Target:
    """A contender in a folder of its own, until `stack` ends; raises StartFailed or OSError."""
    contender, own = entrant.contender, folder / entrant.name
    own.mkdir()
    site = Site(
        folder=own,
        port=free_port(),
        upstream_port=engine.port,
        spare_port=free_port(),
        key=f"bench-{secrets.token_urlsafe(24)}",
        log_level=log_level,
    )
    process = stack.enter_context(
        launched(
            contender.prepare(entrant.program, site),
            folder=own,
            name="output",
            core=core,
            python_path=contender.python_path,
        )
    )
    log = own / "output.log"
    wait_ready(process, port=site.port, path=contender.ready_path, key=site.key, log=log)
    return Target(name=entrant.name, port=site.port, key=site.key, pid=process.pid)


def send_load(load: LoadSpec, target: Target, *, engine: Target, cores: Cores) -> Run:
    """Run one load against `target`, watching it and the engine; raises StartFailed."""
    spec = replace(
        load,
        port=target.port,
        upstream_port=engine.port,
        key=target.key,
        watch=f"{engine.pid},{target.pid}",
    )
    result = run_load(spec, core=cores.load)
    return Run(
        load=result,
        upstream=result.watched[str(engine.pid)],
        contender=None if target is engine else result.watched[str(target.pid)],
    )
