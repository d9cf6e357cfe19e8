"""What goes wrong when, and who asks for what meanwhile: drawn from one number, to be had again.

Pure: it decides everything that chance decides, and does nothing.
"""

import random
from dataclasses import dataclass
from typing import Literal

from tests.support.chaos_proxy import Trouble

LOAD_S = 2.0
"""Clients arrive and faults strike within so long."""
FAULT_S_MAX = 1.2
"""The longest that a fault lasts; the last ones are ended with the load."""
ENGINES_MIN, ENGINES_MAX = 2, 4
CLIENTS_MIN, CLIENTS_MAX = 16, 48
FAULTS_MIN, FAULTS_MAX = 1, 6
CHILD_SHARE = 0.3
"""Of schedules, those whose first engine is a process, which signals can strike."""
PROXY_SHARE = 0.6
"""Of engines, those behind a line that can be bad."""

Manner = Literal["reads", "leaves", "slow", "never"]
Act = Literal["inject", "line", "reset", "kill", "drain", "signal"]
MANNERS: tuple[Manner, ...] = ("reads", "leaves", "slow", "never")
MANNER_WEIGHTS = (70, 18, 8, 4)
TIERS = ("critical", "high", "standard", "background")
LENGTHS = (1, 8, 24, 60, 120)
WORDS = ("Tell a story.", "Count the sheep.", "Why?", "Name a river, a hill and a bird.")

ENGINE_FAULTS = (
    *("freeze", "unhealthy", "die-before*2", "error-500*3", "draining*4", "busy*4", "busy-race*4"),
    *("die-midstream:2*3", "die-midstream:9*2", "close-midstream:4*3", "error-midstream:3*3"),
    *("half-chunk:2*3", "stall:2*2", "stall-keepalive:3*2", "slow:0.4*4", "dribble", "gzip"),
    *("stale-gauges", "zero-gauges", "slow-metrics:1", "no-metrics", "refuse", "terminate"),
    *("terminate:0.5", "core-dead"),
)
LINE_TROUBLES = (
    Trouble(refuses=True),
    Trouble(accepts_only=True),
    Trouble(blackhole=True),
    Trouble(latency_s=0.03),
    Trouble(one_byte=True),
    Trouble(stalls_after=700),
    Trouble(half_open=True),
)
SIGNALS = ("SIGSTOP", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGKILL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One replica."""

    is_process: bool
    has_line: bool
    slots: int
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One request and how its sender behaves."""

    at_s: float
    manner: Manner
    streams: bool
    tells_usage: bool
    """Whether its stream is to tell usage."""
    is_chat: bool
    tier: str
    user: str
    words: str
    max_tokens: int
    leaves_after_s: float
    """Only where it leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, and for how long."""

    at_s: float
    lasts_s: float
    engine: int
    act: Act
    what: str = ""
    trouble: Trouble | None = None

    def __str__(self) -> str:
        what = f" {self.what or self.trouble or ''}".rstrip()
        return f"{self.at_s:.2f} s for {self.lasts_s:.2f} s: engine {self.engine} {self.act}{what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One trial."""

    seed: int
    engines: tuple[Engine, ...]
    clients: tuple[Client, ...]
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        head = f"seed {self.seed}: {len(self.engines)} engines, {len(self.clients)} clients"
        engines = [f"  engine {number}: {each}" for number, each in enumerate(self.engines)]
        return "\n".join([head, *engines, *(f"  {each}" for each in self.faults)])


def schedule(seed: int) -> Schedule:
    """The trial of that number."""
    chance = random.Random(seed)
    has_process = chance.random() < CHILD_SHARE
    engines = tuple(
        Engine(
            is_process=has_process and number == 0,
            has_line=chance.random() < PROXY_SHARE,
            slots=chance.choice((2, 4, 8)),
            speed=chance.choice((2.0, 4.0, 8.0)),
        )
        for number in range(chance.randint(ENGINES_MIN, ENGINES_MAX))
    )
    clients = [_client(chance) for _ in range(chance.randint(CLIENTS_MIN, CLIENTS_MAX))]
    faults = [_fault(chance, engines) for _ in range(chance.randint(FAULTS_MIN, FAULTS_MAX))]
    return Schedule(
        seed=seed,
        engines=engines,
        clients=tuple(sorted(clients, key=lambda each: each.at_s)),
        faults=tuple(sorted(faults, key=lambda each: each.at_s)),
    )


def _client(chance: random.Random) -> Client:
    streams = chance.random() < 0.7
    manner = chance.choices(MANNERS, MANNER_WEIGHTS)[0]
    return Client(
        at_s=chance.random() * LOAD_S,
        manner=manner if streams or manner == "leaves" else "reads",
        streams=streams,
        tells_usage=chance.random() < 0.5,
        is_chat=chance.random() < 0.75,
        tier=chance.choice(TIERS),
        user=f"u{chance.randrange(5)}",
        words=chance.choice(WORDS),
        max_tokens=chance.choice(LENGTHS),
        leaves_after_s=chance.choice((0.0, 0.05, 0.2, 0.6)),
    )


def _fault(chance: random.Random, engines: tuple[Engine, ...]) -> Fault:
    number = chance.randrange(len(engines))
    engine = engines[number]
    act: Act
    what, trouble = "", None
    if engine.is_process and chance.random() < 0.7:
        act, what = "signal", chance.choice(SIGNALS)
    elif engine.has_line and chance.random() < 0.4:
        act = chance.choice(("line", "line", "reset"))
        trouble = chance.choice(LINE_TROUBLES) if act == "line" else None
    else:
        act = chance.choice(("inject", "inject", "inject", "inject", "kill", "drain"))
        what = chance.choice(ENGINE_FAULTS) if act == "inject" else ""
    return Fault(
        at_s=chance.random() * LOAD_S,
        lasts_s=0.1 + chance.random() * (FAULT_S_MAX - 0.1),
        engine=number,
        act=act,
        what=what,
        trouble=trouble,
    )
