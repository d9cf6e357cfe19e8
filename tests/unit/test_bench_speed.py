"""The machine factor: what it follows from, and what it may be applied to."""

import pytest

from gateway.bench.figures import CPU_PER_EVENT_20K, CPU_PER_REQUEST, FIGURES, Figure
from gateway.bench.speed import REFERENCE_US, machine_speed


def nginx(**by_key: float) -> dict[str, float]:
    """nginx's medians here."""
    return by_key


def factors_of(medians: dict[str, float]) -> dict[str, float]:
    """The factors that follow."""
    return machine_speed(lambda figure: medians.get(figure.key)).factors


def figure(key: str) -> Figure:
    """The figure with this key."""
    return next(figure for figure in FIGURES if figure.key == key)


def test_a_factor_is_nginx_here_over_nginx_there() -> None:
    """Upside down, a slow machine would look like a failed target twice."""
    found = factors_of(
        nginx(cpu_per_request_us=34.0, cpu_per_event_5k_us=35.0, cpu_per_event_20k_us=12.7)
    )
    assert found == pytest.approx(
        {"cpu_per_request_us": 2.0, "cpu_per_event_5k_us": 2.0, "cpu_per_event_20k_us": 1.0}
    )


def test_the_reference_is_what_was_measured_there() -> None:
    """Another number here scales every claim."""
    assert REFERENCE_US == {
        "cpu_per_request_us": 17.0,
        "cpu_per_event_5k_us": 17.5,
        "cpu_per_event_20k_us": 12.7,
    }


def test_each_figure_is_scaled_by_its_own_kind_of_work() -> None:
    """A machine with dear system calls is slower for streams than for requests."""
    speed = machine_speed(
        lambda figure: {"cpu_per_request_us": 34.0, "cpu_per_event_20k_us": 38.1}.get(figure.key)
    )
    assert speed.scaled(CPU_PER_REQUEST, 200.0) == pytest.approx(100.0)
    assert speed.scaled(CPU_PER_EVENT_20K, 60.0) == pytest.approx(20.0)
    assert speed.scaled(figure("latency_added_p50_us"), 300.0) == pytest.approx(150.0)


def test_memory_and_rates_are_not_scaled() -> None:
    """A slow machine has no other bytes."""
    speed = machine_speed(lambda figure: 34.0)
    for key in ("memory_at_rest_mb", "memory_per_stream_kb", "requests_per_s", "open_streams"):
        assert speed.scaled(figure(key), 50.0) is None


def test_without_nginx_there_is_no_factor() -> None:
    """And nothing to say of it."""
    speed = machine_speed(lambda figure: None)
    assert speed.factors == {}
    assert speed.in_words() == ""
    assert speed.scaled(CPU_PER_REQUEST, 1.0) is None


def test_a_missing_value_stays_missing() -> None:
    """A dash divided by two is a dash."""
    assert machine_speed(lambda figure: 34.0).scaled(CPU_PER_REQUEST, None) is None
