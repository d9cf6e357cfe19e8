"""Which loads are run, how long and how often: the plan of a benchmark as plain values."""

from dataclasses import dataclass

from gateway.bench.load_spec import LoadSpec

ONE_CLIENT = "one-client"
MANY_CLIENTS = "32-clients"
FIRST_EVENT = "first-event"
STREAMS_5K = "200-streams-5k"
STREAMS_20K = "200-streams-20k"
OPEN_STREAMS = "1000-streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load; `is_paired` ones are run directly as well, right before or after."""

    name: str
    load: LoadSpec
    is_paired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run: `rounds` times, on freshly started processes, every scenario."""

    name: str
    rounds: int
    warm_up: LoadSpec
    """Run once per contender and round before anything counts."""
    scenarios: tuple[Scenario, ...]


def quick_plan() -> Plan:
    """Three rounds, under two minutes for the gateway alone."""
    return _plan("quick", rounds=3, stretch=1.0)


def full_plan() -> Plan:
    """Five rounds of windows four times as long."""
    return _plan("full", rounds=5, stretch=4.0)


def _plan(name: str, *, rounds: int, stretch: float) -> Plan:
    # Memory comes first in a round: a process that has been under load gives pages back late.
    scenarios = (
        Scenario(name=OPEN_STREAMS, is_paired=False, load=_streams(1_000, 10_000, stretch)),
        Scenario(name=ONE_CLIENT, is_paired=True, load=_plain(1, 1.0 * stretch)),
        Scenario(name=MANY_CLIENTS, is_paired=False, load=_plain(32, 2.0 * stretch)),
        Scenario(name=FIRST_EVENT, is_paired=True, load=_first_tokens(1.5 * stretch)),
        Scenario(name=STREAMS_5K, is_paired=True, load=_streams(200, 5_000, stretch)),
        Scenario(name=STREAMS_20K, is_paired=True, load=_streams(200, 20_000, stretch)),
    )
    warm_up = LoadSpec(
        port=0, connections=4, stream=True, events=4, events_per_s=4_000, warm_s=0.0, window_s=0.3
    )
    return Plan(name=name, rounds=rounds, warm_up=warm_up, scenarios=scenarios)


def _plain(connections: int, window_s: float) -> LoadSpec:
    return LoadSpec(port=0, connections=connections, warm_s=0.3, window_s=window_s)


def _first_tokens(window_s: float) -> LoadSpec:
    return LoadSpec(
        port=0, stream=True, events=2, events_per_s=1_000, warm_s=0.3, window_s=window_s
    )


def _streams(streams: int, events_per_s: float, stretch: float) -> LoadSpec:
    """Streams of 64 events that start spread over a second, so that their steps do not coincide."""
    return LoadSpec(
        port=0,
        stream=True,
        connections=streams,
        events=64,
        events_per_s=events_per_s,
        ramp_s=1.0,
        warm_s=0.5,
        window_s=2.0 * stretch,
    )
