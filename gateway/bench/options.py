"""What a benchmark was asked for, and who takes part in it by that; nothing is started here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.bench.cluster_spec import ClusterPlan
from gateway.bench.contenders import FAIRGATE, Contender, fairgate_build, stale_copies
from gateway.bench.launch import OWN_PATH
from gateway.bench.peers import PEERS, find, peer_named
from gateway.bench.scenarios import SCENARIOS, Plan, full_plan, quick_plan
from gateway.bench.speed import YARDSTICK
from gateway.bench.targets import Entrant

PARTS = OVERHEAD, CORE, CLUSTER = ("overhead", "core", "cluster")
"""What can be measured by itself: what the gateway costs, what its scheduler does, and several
gateways as one."""
USUAL = (OVERHEAD, CORE)
"""Without being asked for: the other needs a Redis."""
ALL, NONE = "all", "none"
COMPILED = Path("build") / "compiled"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line as values; what is left out has the plan's own value."""

    full: bool = False
    rounds: int | None = None
    seconds: float | None = None
    """Length of every window."""
    only: tuple[str, ...] = ()
    """Parts, or scenarios by name; empty: those of `USUAL`."""
    peers: tuple[str, ...] = ()
    """Names, "all", or "none"; empty: nginx, and whatever is in `peers_folder`."""
    peers_folder: Path | None = None
    log_level: str = "info"
    python: Path | None = None
    """The interpreter that runs the gateway."""
    build: Path | None = None
    """The folder that holds the gateway's package; None: compiled, if that is not out of date."""
    beside: tuple[str, ...] = ()
    """NAME=FOLDER: other builds of the gateway to measure beside it."""
    json_path: Path | None = None

    def parts(self) -> tuple[str, ...]:
        """Of `PARTS`, what is to be measured; raises ValueError for a name that is none."""
        for name in self.only:
            if name not in (*PARTS, *SCENARIOS):
                known = ", ".join((*PARTS, *SCENARIOS))
                raise ValueError(f"no part {name!r}; there are: {known}")
        if not self.only:
            return USUAL
        has_scenario = any(name in SCENARIOS for name in self.only)
        return tuple(
            part for part in PARTS if part in self.only or (part == OVERHEAD and has_scenario)
        )

    def plan(self) -> Plan:
        """The scenarios, rounds and windows; raises ValueError where nothing would be left."""
        chosen = [name for name in self.only if name in SCENARIOS]
        plan = full_plan() if self.full else quick_plan()
        return plan.changed(rounds=self.rounds, window_s=self.seconds, only=chosen or None)

    def cluster_plan(self) -> ClusterPlan:
        """For several gateways; raises ValueError where nothing would be left."""
        plan = ClusterPlan()
        rounds = plan.rounds if self.rounds is None else self.rounds
        window_s = plan.window_s if self.seconds is None else self.seconds
        if rounds < 1 or window_s <= 0:
            raise ValueError("a benchmark needs at least one round of more than no time at all")
        if self.seconds is not None:
            plan = replace(plan, power_s=5 * window_s)
        stretch = 2 if self.full else 1
        return replace(plan, rounds=rounds * stretch, window_s=window_s)

    def gateway(self, say: Say) -> Entrant:
        """The gateway itself; raises ValueError when the folder it is to come from has none."""
        return self._ours(self._own_build(say))

    def others(self, say: Say) -> list[Entrant]:
        """Other builds of the gateway, then the peers that are found.

        Raises ValueError for a name or a folder that is none; a missing program is only told.
        """
        found = [self._ours(_named_build(told)) for told in self.beside]
        for peer in self._peers():
            place = find(peer, self.peers_folder)
            if place is None:
                say(_missing(peer, self.peers_folder))
            else:
                found.append(Entrant(contender=peer, program=place))
        return found

    def _ours(self, build: Contender) -> Entrant:
        program = str(self.python) if self.python else FAIRGATE.binary
        return Entrant(contender=build, program=program)

    def _peers(self) -> list[Contender]:
        if self.peers == (NONE,):
            return []
        if ALL in self.peers or (not self.peers and self.peers_folder is not None):
            return list(PEERS)
        return [peer_named(name) for name in self.peers or (YARDSTICK,)]

    def _own_build(self, say: Say) -> Contender:
        if self.build is not None:
            return fairgate_build(self.build)
        sources = Path(OWN_PATH[0])
        compiled = sources / COMPILED
        if not (compiled / "gateway" / "__init__.py").exists():
            return FAIRGATE
        if stale := stale_copies(compiled, sources):
            say(f"not compiled: {COMPILED} is out of date ({stale[0]}); `make compile` renews it")
            return FAIRGATE
        return fairgate_build(compiled)


def _named_build(told: str) -> Contender:
    name, is_named, folder = told.partition("=")
    if not (name and is_named and folder):
        raise ValueError(f"{told!r} is not NAME=FOLDER")
    return fairgate_build(Path(folder), name=name)


def _missing(peer: Contender, folder: Path | None) -> str:
    places = f"in {folder} or on the PATH" if folder else "on the PATH"
    lost = f"; without {YARDSTICK} there is no machine factor" if peer.name == YARDSTICK else ""
    return (
        f"{peer.name} skipped: no {peer.binary!r} {places}, and no program in {peer.variable} "
        f"({peer.install}){lost}"
    )
