"""One set of metrics out of those of several processes: what is added up, and what is not.

Works on Prometheus' text as this product writes it: a line's name and labels are taken as they
stand. Counters and histograms are sums. What each gauge means for all of them is declared here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from prometheus_client.utils import floatToGoString

Rule = Callable[[list[float]], float]

SUMMED = frozenset({"counter", "histogram", "summary"})
GAUGES: Mapping[str, Rule] = MappingProxyType(
    {
        "fairgate_build_info": max,
        "fairgate_flow_control_queue_size": sum,
        "fairgate_flow_control_pool_saturation": max,
        "fairgate_flow_control_held": sum,
        "fairgate_flow_control_running": sum,
        "fairgate_flow_control_oldest_wait_seconds": max,
        "fairgate_flow_control_expected_wait_seconds": max,
        "fairgate_tenant_waiting": sum,
        "fairgate_tier_patience_seconds": max,
        "fairgate_tier_ttft_target_seconds": min,
        "fairgate_tier_tpot_target_seconds": min,
        "fairgate_fairness_jain_index": min,
        "fairgate_replica_up": min,
        "fairgate_replica_draining": max,
        "fairgate_replica_gate_closed": max,
        "fairgate_replica_inflight_limit": min,
        "fairgate_replica_tpot_seconds": max,
        "fairgate_replica_kv_tokens": max,
        "fairgate_replica_kv_capacity_tokens": max,
        "fairgate_replica_silent_seconds": max,
        "fairgate_replica_report_stale": max,
        "fairgate_replica_report_age_seconds": max,
        "fairgate_replica_freeness": min,
        "fairgate_replica_waiting_estimate": max,
        "fairgate_replica_inflight": sum,
        "fairgate_replica_foreign": min,
        "fairgate_replica_breaker_state": max,
        "fairgate_replica_slots": max,
        "fairgate_replica_gate_open": max,
        "fairgate_scale_advised_replicas": max,
        "fairgate_cluster_phase": max,
        "fairgate_cluster_epoch": max,
        "fairgate_cluster_followers": max,
        "fairgate_cluster_gateways": max,
        "fairgate_cluster_degraded": max,
        "fairgate_event_loop_lag_max_seconds": max,
        "fairgate_body_bytes": sum,
        "fairgate_store_up": min,
        "fairgate_policy_revision": min,
        "fairgate_requests_inside": sum,
        "fairgate_workers": max,
        "fairgate_workers_silent": max,
        "fairgate_process_virtual_memory_bytes": sum,
        "fairgate_process_resident_memory_bytes": sum,
        "fairgate_process_start_time_seconds": min,
        "fairgate_process_open_fds": sum,
        "fairgate_process_max_fds": min,
    }
)
"""Those of the scheduler are told by who leads the pool; only degraded by several at once."""


@dataclass(slots=True)
class Family:
    """One metric: its samples by name and labels, as they are written."""

    name: str
    kind: str
    head: str
    samples: dict[str, float] = field(default_factory=dict)


def merged(texts: Iterable[str], *, gone: Iterable[str] = ()) -> str:
    """The metrics of all.

    `gone` are last words of processes that are no more, or do not answer: of those only what adds
    up counts, so that no sum ever falls.
    """
    found: dict[str, dict[str, list[float]]] = {}
    families: dict[str, Family] = {}
    for text, is_gone in (*((t, False) for t in texts), *((t, True) for t in gone)):
        for family in parsed(text):
            if is_gone and family.kind not in SUMMED:
                continue
            families.setdefault(family.name, family)
            values = found.setdefault(family.name, {})
            for sample, value in family.samples.items():
                values.setdefault(sample, []).append(value)
    for name, family in families.items():
        rule = sum if family.kind in SUMMED else GAUGES.get(name, max)
        family.samples = {sample: rule(values) for sample, values in found[name].items()}
    return "".join(_written(family) for family in families.values())


def sums_of(text: str) -> str:
    """Only what adds up."""
    return "".join(_written(family) for family in parsed(text) if family.kind in SUMMED)


def parsed(text: str) -> list[Family]:
    """All metrics of a text; a line that cannot be read is left out."""
    families: list[Family] = []
    help_of = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            help_of = line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            heads = (help_of, line) if help_of.startswith(f"# HELP {name} ") else (line,)
            families.append(Family(name, kind, "\n".join(heads)))
        elif line and families and not line.startswith("#"):
            sample, _, value = line.rpartition(" ")
            try:
                families[-1].samples[sample] = float(value)
            except ValueError:
                continue
    return families


def _written(family: Family) -> str:
    lines = [f"{sample} {_number(value)}" for sample, value in family.samples.items()]
    return "\n".join((family.head, *lines, ""))


def _number(value: float) -> str:
    """As the library writes it."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # of the library
