"""What the gateway tells of itself beside what it tells of requests, replicas and queues."""

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.admin.office import Office
from gateway.api.crowd import Crowd
from gateway.api.doors import Doors
from gateway.api.relay import Relay
from gateway.runtime.lag import LagMeter
from gateway.telemetry.process import Told, families_of, refusals_of
from gateway.telemetry.writers import Writers
from gateway.tenancy.limits import Limits
from gateway.upstream.fleet import Fleet


class Vital(Protocol):
    """The parts of a gateway that are looked at, each when the figures are asked for."""

    doors: Doors
    crowd: Crowd
    lag: LagMeter
    relay: Relay
    office: Office
    fleet: Fleet
    writers: Writers
    limits: Limits


def told_also(vital: Vital) -> tuple[Callable[[], Iterator[Metric]], ...]:
    """What metrics tell beside requests, queues and what replicas carry."""
    return (
        families_of(gauges(vital), counters(vital)),
        vital.writers.families,
        refusals_of(vital.limits.refusals),
        replicas(vital),
    )


def counters(vital: Vital) -> dict[str, Told]:
    """What only grows, by name."""
    return {
        "requests_kept_out": (
            "Requests that were refused since the gateway itself was overloaded.",
            lambda: vital.doors.kept_out,
        ),
        "connections_turned_away": (
            "Connections of clients that came beyond the bound.",
            lambda: vital.crowd.turned_away,
        ),
    }


def gauges(vital: Vital) -> dict[str, Told]:
    """What goes up and down, by name."""
    return {
        "event_loop_lag_max_seconds": (
            "Longest lag of the event loop in the last half minute to minute.",
            lambda: vital.lag.longest_s,
        ),
        "body_bytes": (
            "Bytes of all bodies that are here: those that come, wait and run.",
            lambda: vital.relay.body_bytes,
        ),
        "store_up": (
            "Whether what operators decide can be kept: 0 while the store cannot be used.",
            lambda: float(vital.office.fault is None),
        ),
        "policy_revision": (
            "Revision of the store that is in force here.",
            lambda: float(vital.office.revision),
        ),
        "requests_inside": (
            "Requests that were let in and have not ended.",
            lambda: vital.doors.inside,
        ),
    }


def replicas(vital: Vital) -> Callable[[], Iterator[Metric]]:
    """Which replicas answer, those included that never did and so are unknown to the scheduler."""

    def families() -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "fairgate_replica_up", "1 where the replica answers its probe.", labels=("replica",)
        )
        for name, status in sorted(vital.fleet.statuses().items()):
            up.add_metric((name,), float(status.up))
        yield up

    return families
