"""The metrics that a gateway offers, by name, and the metrics that queries ask for."""

import re
from pathlib import Path

from gateway.app import Gateway
from gateway.settings import load_settings
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.tracing import Trace

OF_A_CLUSTER = frozenset(
    f"fairgate_cluster_{name}"
    for name in (
        "phase", "epoch", "followers", "gateways", "degraded", "resyncs_total", "losses_total"
    )
)  # fmt: skip
"""Offered only where several gateways act as one."""
OF_WORKERS = frozenset({"fairgate_workers", "fairgate_workers_silent"})
"""Told for all workers of a port together."""
TYPE_LINE = re.compile(r"^# TYPE (\S+) (\w+)$", re.MULTILINE)
STRING = re.compile(r'"[^"]*"')
NAME = re.compile(r"\b(?:fairgate_\w+|\w+:fairgate\w*:\w+|fairgate:\w+:\w+)\b")
SUFFIXES = ("_bucket", "_sum", "_count")


class Lossy:
    """Traces, without the extra that sends them."""

    def __init__(self) -> None:
        self.dropped = {"queue": 0}

    def add(self, trace: Trace, record: SettledRequest) -> None:
        """Lost."""

    def close(self) -> None:
        """Nothing waits."""


def types_offered(folder: Path) -> dict[str, str]:
    """Name and type of all that a gateway tells, counters with their suffix; no cluster."""
    values = {"replicas": ["http://127.0.0.1:9"], "log.requests": str(folder / "requests.log")}
    gateway = Gateway(load_settings(config=None, environ={}, overrides=values))
    gateway.writers.open_log(gateway.settings.log.requests)
    gateway.writers._traces = Lossy()
    text = gateway.metrics.text().decode()
    assert gateway.writers.log is not None
    gateway.writers.log.close()
    return dict(TYPE_LINE.findall(text))


def samples_offered(folder: Path) -> frozenset[str]:
    """Names as they stand in queries, those of a cluster included."""
    found = set(OF_A_CLUSTER)
    for name, kind in types_offered(folder).items():
        found.update(name + suffix for suffix in SUFFIXES) if kind == "histogram" else found.add(
            name
        )
    return frozenset(found)


def names_in(query: str) -> set[str]:
    """The metrics and recorded series that a query asks for."""
    return set(NAME.findall(STRING.sub('""', query)))
