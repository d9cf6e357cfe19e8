"""Where settled requests are written follows the configuration, while the gateway runs."""

from pathlib import Path

import pytest

from gateway.settings import SettingsError, load_settings
from gateway.telemetry.tracing import Tracing
from gateway.telemetry.writers import Writers
from tests.support.gateway import eventually

COLLECTOR = "http://127.0.0.1:9"


def told(writers: Writers) -> set[str]:
    """Names of what it tells."""
    return {family.name for family in writers.families()}


async def test_what_is_not_written_is_not_told(tmp_path: Path) -> None:
    """A counter of losses where nothing can be lost asks for an alert that nobody needs."""
    writers = Writers(lambda: 0.0, "1.2.3")
    assert told(writers) == set()
    writers.open_log(str(tmp_path / "requests.log"))
    assert told(writers) == {"fairgate_request_log_dropped_lines"}
    first = writers.log
    writers.open_log(str(tmp_path / "requests.log"))
    assert writers.log is first
    writers.open_log(None)
    assert told(writers) == set()
    await writers.close()


async def test_traces_come_and_go_with_the_configuration() -> None:
    """Who wants to see one bad hour must not have to restart for it."""
    pytest.importorskip("opentelemetry.sdk.trace", reason="SKIPPED: pip install 'fairgate[otel]'")
    writers = Writers(lambda: 0.0, "1.2.3")
    tracing = writers.open_traces(COLLECTOR, 0.5, None)
    assert isinstance(tracing, Tracing)
    assert told(writers) == {"fairgate_traces_dropped"}
    assert writers.open_traces(COLLECTOR, 0.5, tracing) is tracing
    assert writers.open_traces(COLLECTOR, 1.0, tracing) is not tracing
    known = writers._traces
    assert writers.open_traces(None, 1.0, tracing) is None
    assert known is not None
    await eventually(lambda: not known._thread.is_alive())  # type: ignore[attr-defined]  # of the real one
    assert told(writers) == set()


async def test_without_traces_nothing_of_them_is_imported() -> None:
    """The library takes a second to import, and is not there at most places."""
    writers = Writers(lambda: 0.0, "1.2.3")
    assert writers.open_traces(None, 1.0, None) is None


def test_a_collector_without_the_extra_is_a_fault_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found at the start, with what to do, and not as a stack at the first request."""
    monkeypatch.setattr("gateway.settings.find_spec", lambda name: None)
    values: dict[str, object] = {"replicas": [COLLECTOR], "log.traces": COLLECTOR}
    with pytest.raises(SettingsError, match=r"log\.traces.*fairgate\[otel\]"):
        load_settings(config=None, environ={}, overrides=values)
    monkeypatch.setattr("gateway.settings.find_spec", lambda name: object())
    assert load_settings(config=None, environ={}, overrides=values).log.traces == COLLECTOR
