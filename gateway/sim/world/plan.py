"""What a run is made of, apart from its requests and its dispatcher: machines, wires, misfortunes.

Decides nothing; `play.py` reads it.
"""

from dataclasses import dataclass, field
from math import inf

from gateway.sim.engine_config import EngineConfig
from gateway.sim.profiles import A100_LLAMA2_7B, Profile

DAY_S = 86_400.0
MIGRATION_BYTES_PER_S = 8e9
"""64 Gb/s, the network of Llumnix's testbed (OSDI'24, section 6.1)."""
MIGRATION_PAUSE_S = 0.025
"""A sequence stands still while the last of its KV is copied: 20 to 30 ms there (section 6.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """So many engines of one kind."""

    n: int = 1
    profile: Profile = A100_LLAMA2_7B
    config: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """How often the engines are asked for their metrics, and how far the answers are from true."""

    interval_s: float = 1.0
    delay_s: float = 0.01
    """From asking to having the answer."""
    age_s: float = 0.0
    """The gauges show what was true this long before they were asked for."""
    loss: float = 0.0
    """Share of the answers that never come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """For a while a replica tells what was true at its beginning, or that it does nothing."""

    replica: int
    at: float
    until: float = inf
    is_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A replica dies with all that it holds, and is back empty."""

    replica: int
    at: float
    until: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The operator wants nothing new on a replica for a while."""

    replica: int
    at: float
    until: float = inf


Misfortune = Failure | Drain | Lie


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run, but for its requests and its dispatcher."""

    engines: tuple[Engines, ...] = (Engines(n=4),)
    hop_s: float = 0.002
    """One way between gateway and engine."""
    reports: Reports = field(default_factory=Reports)
    progress_interval_s: float = 1.0
    """Between two tellings of how far the answers are; the gateway's own."""
    events: tuple[Misfortune, ...] = ()
    is_continued: bool = True
    """Whether an answer that breaks off goes on elsewhere; else its request has failed."""
    notice_s: float = 0.5
    """From a replica's death to knowing that it is lost: two refused probes."""
    migration_bytes_per_s: float = MIGRATION_BYTES_PER_S
    migration_pause_s: float = MIGRATION_PAUSE_S
    until_s: float = DAY_S
    """The run is cut then; what is open stays open."""
    seed: int = 0
    """Of what happens by chance in the world; workloads have their own."""

    @property
    def machines(self) -> int:
        """Engines of all kinds."""
        return sum(engines.n for engines in self.engines)
