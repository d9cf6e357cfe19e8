"""What operators read: names and labels that a dashboard can rely on, and no more of them."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.messages import Arrived, ReplicaFound, ReplicaRemoved, Request, Usage
from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.core.scheduler import Scheduler
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import SettledRequest

PROMISED = {
    "flow_control_request_queue_duration_seconds": {"tier", "outcome", "model"},
    "flow_control_queue_size": {"tier", "model"},
    "flow_control_requests": {"tier", "outcome"},
    "flow_control_pool_saturation": {"pool"},
    "replica_freeness": {"replica"},
    "replica_waiting_estimate": {"replica"},
    "replica_gate_open": {"replica", "tier"},
    "request_ttft_seconds": {"tier"},
    "request_streaming_tpot_seconds": {"tier"},
    "request_duration_seconds": {"tier"},
    "tokens": {"tier", "kind"},
    "relay_overhead_seconds": set(),
    "migrations": {"kind"},
    "scale_advised_replicas": {"model"},
    "event_loop_lag_seconds": set(),
    "process_open_fds": set(),
    "process_resident_memory_bytes": set(),
    "process_start_time_seconds": set(),
}
"""Without prefix, and without the suffix that counters get; with their labels."""

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


class Watched:
    """A scheduler and its metrics, at instant 0."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(Policy(tiers=DEFAULT_TIERS))
        self.metrics = Metrics(self.scheduler, lambda: 0.0, version="1.2.3")

    def find(self, replica: str, *models: str, slots: int = 2) -> None:
        """A replica appears."""
        found = ReplicaFound(replica=replica, models=frozenset(models or {"m"}), slots=slots)
        self.scheduler.handle(found, 0.0)

    def arrive(self, id: str, tier: int = 2, model: str = "m") -> None:
        """A request comes."""
        request = Request(id=id, model=model, tier=tier, tenant="t", user="u", arrived_at=0.0)
        self.scheduler.handle(Arrived(request), 0.0)

    @property
    def samples(self) -> Samples:
        """name -> labels -> value, as scraped now; the text must parse."""
        found: Samples = {}
        for family in text_string_to_metric_families(self.metrics.text().decode()):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                by_labels = found.setdefault(sample.name.removeprefix("fairgate_"), {})
                assert labels not in by_labels, "a label set stands twice"
                by_labels[labels] = sample.value
        return found


@pytest.fixture
def watched() -> Watched:
    """A gateway's scheduler and metrics."""
    return Watched()


def record(**changes: object) -> SettledRequest:
    """A settled request."""
    fields: dict[str, object] = {
        "request_id": "r1", "route": "chat", "model": "m", "tenant": "t", "user": "u",
        "tier": "standard", "replica": "gpu0", "outcome": "done", "status": 200, "attempts": 1,
        "waited_s": 0.3, "ttft_s": 0.5, "tpot_s": 0.02, "duration_s": 2.0, "overhead_s": 0.0004,
        "usage": Usage(prompt_tokens=10, output_tokens=20, cached_tokens=4),
    }  # fmt: skip
    return SettledRequest(**{**fields, **changes})  # type: ignore[arg-type]  # free keywords


def test_every_promised_metric_exists_with_its_labels_and_explains_itself(
    watched: Watched,
) -> None:
    """A dashboard made for llm-d needs nothing changed but the prefix."""
    watched.find("gpu0")
    watched.metrics.settled(record())
    watched.metrics.advised({"m"}, 2)
    watched.metrics.recalled("queued")
    families = {
        family.name.removeprefix("fairgate_"): family
        for family in text_string_to_metric_families(watched.metrics.text().decode())
    }
    for name, labels in PROMISED.items():
        assert families[name].documentation.endswith("."), name
        for sample in families[name].samples:
            assert set(sample.labels) - {"le"} == labels, name


def test_all_names_are_in_one_form(watched: Watched) -> None:
    """Prometheus' own rules: one prefix, base units, a suffix that says what it counts."""
    watched.find("gpu0")
    watched.metrics.settled(record())
    for family in text_string_to_metric_families(watched.metrics.text().decode()):
        assert re.fullmatch(r"fairgate_[a-z_]+", family.name)
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        assert not re.search(r"_(ms|milliseconds|percent|created)$", family.name)


def test_a_settled_request_is_counted_once_in_each(watched: Watched) -> None:
    """Sums that do not agree send an operator looking for a fault that is not there."""
    watched.metrics.settled(record())
    watched.metrics.settled(record(ttft_s=None, tpot_s=None, usage=None, outcome="cancelled"))
    samples = watched.samples
    tier = ("tier", "standard")
    done = (("model", "m"), ("outcome", "done"), tier)
    assert samples["flow_control_request_queue_duration_seconds_sum"][done] == 0.3
    assert samples["flow_control_requests_total"] == {
        (("outcome", "cancelled"), tier): 1.0,
        (("outcome", "done"), tier): 1.0,
    }
    assert samples["request_duration_seconds_count"][(tier,)] == 2.0
    assert samples["request_ttft_seconds_count"][(tier,)] == 1.0
    assert samples["request_streaming_tpot_seconds_count"][(tier,)] == 1.0
    assert samples["tokens_total"] == {
        (("kind", "prompt"), tier): 10.0,
        (("kind", "cached"), tier): 4.0,
        (("kind", "output"), tier): 20.0,
    }
    assert samples["relay_overhead_seconds_count"][()] == 2.0
    assert samples["retries_total"][()] == 0.0


def test_what_was_never_sent_on_has_no_overhead_and_retries_count_beyond_the_first(
    watched: Watched,
) -> None:
    """A refusal would pull the overhead down to nothing."""
    watched.metrics.settled(record(replica="", outcome="over_capacity", attempts=1))
    watched.metrics.settled(record(attempts=3))
    assert watched.samples["relay_overhead_seconds_count"][()] == 1.0
    assert watched.samples["retries_total"][()] == 2.0


def test_no_name_that_a_caller_makes_up_becomes_a_label(watched: Watched) -> None:
    """Each would be a time series for ever: a thousand users would kill the monitoring."""
    watched.find("gpu0")
    watched.metrics.settled(record())
    size = len(watched.metrics.text().splitlines())
    for n in range(1_000):
        watched.metrics.settled(record(request_id=f"r{n}", tenant=f"t{n}", user=f"u{n}"))
        watched.arrive(f"w{n}", model=f"unknown{n}")
    assert len(watched.metrics.text().splitlines()) == size


def test_the_queue_is_shown_by_tier_and_model_also_where_it_is_empty(watched: Watched) -> None:
    """A series that vanishes at zero looks like a gateway that died."""
    watched.find("gpu0", slots=1)
    for n in range(5):
        watched.arrive(f"s{n}")
    watched.arrive("b", tier=3)
    sizes = watched.samples["flow_control_queue_size"]
    assert {labels[1][1]: value for labels, value in sizes.items()} == {
        "critical": 0.0,
        "high": 0.0,
        "standard": float(len(watched.scheduler.waiting) - 1),
        "background": 1.0,
    }


def test_models_that_share_replicas_are_counted_apart(watched: Watched) -> None:
    """The autoscaler of one model must not be shown the queue of another."""
    watched.find("gpu0", "m", "lora", slots=1)
    watched.find("gpu1", "alone", slots=1)
    for n in range(9):
        watched.arrive(f"l{n}", model="lora")
    watched.arrive("a", model="alone")
    watched.arrive("m", model="m", tier=3)
    sizes = watched.samples["flow_control_queue_size"]
    assert len(sizes) == 3 * len(DEFAULT_TIERS)
    assert sizes[(("model", "lora"), ("tier", "standard"))] >= 5.0
    assert sizes[(("model", "m"), ("tier", "background"))] == 1.0
    assert sizes[(("model", "m"), ("tier", "standard"))] == 0.0
    assert sum(sizes.values()) == len(watched.scheduler.waiting)


def test_saturation_and_gates_follow_the_scheduler(watched: Watched) -> None:
    """The first two figures that anybody looks at."""
    watched.find("gpu0", slots=4)
    assert watched.samples["flow_control_pool_saturation"] == {(("pool", "m"),): 0.0}
    assert set(watched.samples["replica_gate_open"].values()) == {1.0}
    for n in range(20):
        watched.arrive(f"s{n}")
    assert watched.samples["flow_control_pool_saturation"][(("pool", "m"),)] >= 1.0
    gates = watched.samples["replica_gate_open"]
    assert gates[(("replica", "gpu0"), ("tier", "background"))] == 0.0
    assert watched.samples["replica_inflight"][(("replica", "gpu0"),)] >= 4.0


def test_the_last_advice_stands_for_each_model_of_the_pool(watched: Watched) -> None:
    """An autoscaler asks by model, and must not add up what was advised before."""
    watched.metrics.advised(["m", "lora"], 3)
    watched.metrics.advised(["other"], 0)
    watched.metrics.advised(["m", "lora"], 2)
    assert watched.samples["scale_advised_replicas"] == {
        (("model", "m"),): 2.0,
        (("model", "lora"),): 2.0,
        (("model", "other"),): 0.0,
    }


def test_moves_are_counted_by_kind(watched: Watched) -> None:
    """Requests that wander without end look like a slow fleet from outside."""
    for kind in ("queued", "queued", "running"):
        watched.metrics.recalled(kind)
    assert watched.samples["migrations_total"] == {
        (("kind", "queued"),): 2.0,
        (("kind", "running"),): 1.0,
    }


def test_a_removed_replica_vanishes_from_all_metrics(watched: Watched) -> None:
    """Gauges of dead replicas have kept alerts firing for days elsewhere."""
    watched.find("gpu0")
    watched.find("gpu1")
    assert b"gpu1" in watched.metrics.text()
    watched.scheduler.handle(ReplicaRemoved("gpu1"), 0.0)
    assert b"gpu1" not in watched.metrics.text()
    assert b"gpu0" in watched.metrics.text()


def test_two_gateways_in_one_process_do_not_share_a_registry() -> None:
    """Tests and embedders run several; a shared registry refuses the second."""
    one, other = Watched(), Watched()
    one.metrics.settled(record())
    assert "flow_control_requests_total" not in other.samples


def test_advice_for_models_that_are_gone_is_told_no_more(watched: Watched) -> None:
    """An autoscaler would keep machines for them."""
    watched.metrics.advised({"a", "b"}, 2)
    watched.metrics.forget_advice({"b"})
    assert watched.samples["scale_advised_replicas"] == {(("model", "b"),): 2.0}
    watched.metrics.advised({"a"}, 1)
    assert len(watched.samples["scale_advised_replicas"]) == 2
