"""Which loads are run, how long and how often: the plan of a benchmark as plain values."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from gateway.bench.load_spec import LoadSpec

OPEN_STREAMS = "1000-streams"
ONE_CLIENT = "one-client"
MANY_CLIENTS = "32-clients"
STEADY_RATE = "32-open-loop"
FIRST_EVENT = "first-event"
STREAMS_5K = "200-streams-5k"
STREAMS_20K = "200-streams-20k"
# Memory comes first in a round: a process that has been under load gives pages back late.
SCENARIOS = (
    OPEN_STREAMS,
    ONE_CLIENT,
    MANY_CLIENTS,
    STEADY_RATE,
    FIRST_EVENT,
    STREAMS_5K,
    STREAMS_20K,
)


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

    def changed(
        self,
        *,
        rounds: int | None = None,
        window_s: float | None = None,
        only: Collection[str] | None = None,
    ) -> "Plan":
        """This plan with another number of rounds, windows of one length, or fewer scenarios.

        Raises ValueError where nothing would be left of it.
        """
        kept = [one for one in self.scenarios if only is None or one.name in only]
        if not kept or (rounds is not None and rounds < 1):
            raise ValueError("a benchmark needs at least one round of one scenario")
        if window_s is not None:
            if window_s <= 0:
                raise ValueError("a window must last longer than no time at all")
            kept = [replace(one, load=replace(one.load, window_s=window_s)) for one in kept]
        return replace(self, rounds=rounds or self.rounds, scenarios=tuple(kept))


def quick_plan() -> Plan:
    """Three rounds, a little over two minutes for the gateway alone."""
    return _plan("quick", rounds=3, stretch=1.0)


def full_plan() -> Plan:
    """Five rounds of windows four times as long."""
    return _plan("full", rounds=5, stretch=4.0)


def _plan(name: str, *, rounds: int, stretch: float) -> Plan:
    steady = replace(_plain(32, 1.5 * stretch), requests_per_s=500)
    open_streams = replace(_streams(1_000, 10_000, 2.0 * stretch), alone_s=0.5)
    loads = {
        OPEN_STREAMS: open_streams,
        ONE_CLIENT: _plain(1, 1.5 * stretch),
        MANY_CLIENTS: _plain(32, 2.0 * stretch),
        STEADY_RATE: steady,
        FIRST_EVENT: _first_tokens(1.5 * stretch),
        STREAMS_5K: _streams(200, 5_000, 2.0 * stretch),
        STREAMS_20K: _streams(200, 20_000, 2.0 * stretch),
    }
    warm_up = LoadSpec(
        port=0, connections=4, stream=True, events=4, events_per_s=4_000, warm_s=0.0, window_s=0.3
    )
    return Plan(
        name=name,
        rounds=rounds,
        warm_up=warm_up,
        scenarios=tuple(
            Scenario(name=each, load=loads[each], is_paired=each != OPEN_STREAMS)
            for each in SCENARIOS
        ),
    )


def _plain(connections: int, window_s: float) -> LoadSpec:
    return LoadSpec(port=0, connections=connections, warm_s=0.3, window_s=window_s)


def _first_tokens(window_s: float) -> LoadSpec:
    return LoadSpec(
        port=0, stream=True, events=2, events_per_s=1_000, warm_s=0.3, window_s=window_s
    )


def _streams(streams: int, events_per_s: float, window_s: float) -> LoadSpec:
    """Streams of 64 events that start spread over a second, so that their steps do not coincide."""
    return LoadSpec(
        port=0,
        stream=True,
        connections=streams,
        events=64,
        events_per_s=events_per_s,
        ramp_s=1.0,
        warm_s=0.5,
        window_s=window_s,
    )
