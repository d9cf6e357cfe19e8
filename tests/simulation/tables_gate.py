"""The gate in figures: work, queues inside the engines, speed, outages of the scrapes."""

from collections.abc import Iterator

from tests.simulation import policies, scenarios, test_gate_speed
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.markdown import change, milliseconds, percent, seconds, table
from tests.simulation.scenarios import GateFigures, Scenario

LOADS = (0.5, 0.9, 1.0, 1.5)
RUNS = (("none", 1.0), ("constant 3", 1.0), ("constant 3", 5.0), ("gate", 1.0), ("gate", 5.0))


def gate() -> Iterator[str]:
    """One table a scenario: loads down, policies with the lateness of their reports beside."""
    for scenario in scenarios.SCENARIOS:
        rows = [row for load in LOADS for row in _gate_rows(scenario, load)]
        capacity = scenarios.capacity_per_s(scenario)
        yield table(
            f"The gate: {scenario.name} (capacity {capacity:.1f} requests/s)",
            (
                "load", "policy", "reports late", "work against none", "tokens/s", "requests/s",
                "beyond the slots, max", "beyond the allowance, max", "idle slot, max s",
                "light TTFT p50 s", "p95 s", "preemptions",
            ),
            rows,
        )  # fmt: skip


def _gate_rows(scenario: Scenario, load: float) -> Iterator[tuple[object, ...]]:
    none: GateFigures | None = None
    for name, late_s in RUNS:
        found = scenarios.run(scenario, policies.named(name), load, late_s=late_s)
        none = none or found
        late = "-" if name == "none" else f"{late_s:.0f} s"
        yield (load, name, late, *_cells(found, none))


def _cells(found: GateFigures, none: GateFigures) -> tuple[object, ...]:
    return (
        change(found.gpu_s / none.gpu_s),
        f"{found.tokens_per_s:.0f}",
        f"{found.requests_per_s:.2f}",
        found.beyond_max,
        found.excess_max,
        seconds(found.idle_s),
        seconds(found.ttft_light_s),
        seconds(found.ttft_light_p95_s),
        found.preemptions,
    )


def speed() -> Iterator[str]:
    """10 s means of the time between two tokens, limit by limit."""
    rows = []
    for limit_ms in (20.0, 25.0, 30.0, 40.0, 1_000.0):
        for late_s in (1.0, 5.0):
            fleet = test_gate_speed.crowded(limit_ms, late_s)
            rows.append((f"{limit_ms:.0f}", f"{late_s:.0f} s", *_speed_cells(fleet)))
    yield table(
        "The speed limit: one engine of 256 slots, 9.5 ms a token alone, 400 requests at a time",
        ("limit ms", "reports late", "first 10 s", "10 s means after 30 s", "max", "tokens/s"),
        rows,
    )


def _speed_cells(fleet: Fleet) -> tuple[str, ...]:
    from_s, until_s = test_gate_speed.SETTLED_S, test_gate_speed.UNTIL_S
    means = figures.tpot_means_s(fleet, from_s, until_s)
    return (
        milliseconds(figures.tpot_means_s(fleet, 0, 10)[0]),
        " ".join(milliseconds(mean) for mean in means),
        milliseconds(max(means)),
        f"{figures.tokens_per_s(fleet, from_s, until_s):.0f}",
    )


def outage() -> Iterator[str]:
    """Work in a window with and without a minute in which no scrape is answered."""
    rows = []
    for tells_slots in (True, False):
        usual, blind = test_gate_speed.with_and_without_scrapes(tells_slots=tells_slots)
        rows.append(
            (
                "told" if tells_slots else "learnt",
                percent(1 - blind.gpu_s / usual.gpu_s),
                blind.excess_max,
            )
        )
    yield table(
        "A minute without scrapes, no foreign traffic",
        ("slots", "work lost", "beyond the allowance, max"),
        rows,
    )
