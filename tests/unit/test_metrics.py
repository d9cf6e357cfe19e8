"""What operators read: names and labels that a dashboard can rely on, and no more of them."""

import re
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Timestamp

from gateway.core.messages import (
    Arrived,
    DrainAsked,
    FirstToken,
    PolicyChanged,
    ReplicaFound,
    ReplicaLost,
    ReplicaRemoved,
    ReplicaReported,
    Request,
    Usage,
)
from gateway.core.policy import DEFAULT_TIERS, Policy, Tier
from gateway.core.report import ReplicaReport
from gateway.core.scheduler import Scheduler
from gateway.telemetry.metrics import EXEMPLAR_EVERY, Metrics
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.tenants import SHOWN_MAX

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
    "goodput_requests": {"tier", "met"},
    "fairness_jain_index": {"tier"},
    "flow_control_oldest_wait_seconds": {"tier"},
    "flow_control_expected_wait_seconds": {"tier", "pool"},
    "flow_control_running": {"tier"},
    "flow_control_held": {"tier"},
    "tier_patience_seconds": {"tier"},
    "tier_ttft_target_seconds": {"tier"},
    "tier_tpot_target_seconds": {"tier"},
    "tenant_requests": {"tenant"},
    "tenant_queue_seconds": {"tenant"},
    "tenant_tokens": {"tenant", "kind"},
    "tenant_waiting": {"tenant"},
    "replica_silent_seconds": {"replica"},
    "replica_report_stale": {"replica"},
    "replica_draining": {"replica"},
    "build_info": {"version", "python", "compiled"},
    "process_open_fds": set(),
    "process_resident_memory_bytes": set(),
    "process_start_time_seconds": set(),
}
"""Without prefix, and without the suffix that counters get; with their labels."""

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""As Prometheus asks."""
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


class Watched:
    """A scheduler and its metrics, at instant 0, which is 1,000 s after 1970."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(Policy(tiers=DEFAULT_TIERS))
        self.metrics = Metrics(
            self.scheduler,
            lambda: self.now,
            version="1.2.3",
            wall=lambda: self.now + 1_000.0,
        )

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


def open_families(text: bytes) -> list[Metric]:
    """What an exposition in OpenMetrics tells; it must parse."""
    parse: Callable[[str], Iterator[Metric]] = openmetrics.text_string_to_metric_families
    return list(parse(text.decode()))


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
    watched.metrics.lag(0.001)
    families = {
        family.name.removeprefix("fairgate_"): family
        for family in text_string_to_metric_families(watched.metrics.text().decode())
    }
    for name, labels in PROMISED.items():
        assert families[name].documentation.endswith("."), name
        assert families[name].samples, name
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
    for n in range(SHOWN_MAX):
        watched.metrics.settled(record(tenant=f"first{n}"))
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
        (("kind", "continued"),): 0.0,
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


def test_exemplars_lead_from_a_bucket_to_a_request_and_only_openmetrics_shows_them(
    watched: Watched,
) -> None:
    """From the slowest bucket of a panel to the line in the log, without a search."""
    watched.metrics.settled(record(request_id="before"))
    watched.metrics.exposed(OPEN_METRICS)
    watched.metrics.settled(record(request_id="slow", streams=True, ttft_s=40.0, arrived_at=7.0))
    watched.metrics.settled(record(request_id="traced", ttft_s=0.01, trace_id="ab" * 16))
    text, media_type = watched.metrics.exposed(OPEN_METRICS)
    assert media_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    families = {each.name: each for each in open_families(text)}
    exemplars = {
        sample.labels["le"]: sample.exemplar
        for sample in families["fairgate_request_ttft_seconds"].samples
        if sample.exemplar is not None
    }
    assert {le: each.labels for le, each in exemplars.items()} == {
        "60.0": {"request_id": "slow"},
        "0.02": {"request_id": "traced", "trace_id": "ab" * 16},
    }
    assert exemplars["60.0"].value == 40.0
    assert exemplars["60.0"].timestamp == Timestamp(1_000 + 7 + 2, 0)
    plain, media_type = watched.metrics.exposed("*/*")
    assert media_type.startswith("text/plain; version=0.0.4")
    assert b"request_id" not in plain


def test_of_requests_that_are_nothing_special_some_are_exemplars(watched: Watched) -> None:
    """Each costs a microsecond, and one says as much as the next."""
    watched.metrics.exposed(OPEN_METRICS)
    kept = set()
    for number in range(4 * EXEMPLAR_EVERY):
        watched.metrics.settled(record(request_id=f"r{number}"))
        text = watched.metrics.exposed(OPEN_METRICS)[0]
        kept |= {
            sample.exemplar.labels["request_id"]
            for family in open_families(text)
            for sample in family.samples
            if sample.exemplar is not None
        }
    assert len(kept) == 4


def test_both_formats_tell_the_same(watched: Watched) -> None:
    """Which one Prometheus asks for depends on its version: a panel must not."""
    watched.find("gpu0")
    watched.metrics.settled(record())
    plain = {
        sample.name
        for family in text_string_to_metric_families(watched.metrics.text().decode())
        for sample in family.samples
    }
    families = open_families(watched.metrics.exposed(OPEN_METRICS)[0])
    assert {sample.name for family in families for sample in family.samples} == plain


def test_goodput_is_counted_from_the_first_scrape_on(watched: Watched) -> None:
    """A rate sees nothing of a series that is born with its first failure."""
    goodput = watched.samples["goodput_requests_total"]
    assert set(goodput.values()) == {0.0}
    assert len(goodput) == 2 * len(DEFAULT_TIERS)
    watched.metrics.settled(record(streams=True))
    watched.metrics.settled(record(streams=True, ttft_s=6.0))
    watched.metrics.settled(record(outcome="invalid_request", status=400))
    goodput = watched.samples["goodput_requests_total"]
    assert goodput[(("met", "true"), ("tier", "standard"))] == 1.0
    assert goodput[(("met", "false"), ("tier", "standard"))] == 1.0


def test_targets_follow_the_policy(watched: Watched) -> None:
    """Who tightens a target would otherwise be told that it is kept."""
    watched.metrics.settled(record(streams=True))
    tiers = (Tier(name="standard", ttft_target_ms=100.0), Tier(name="free"))
    moved_to = dict.fromkeys(("critical", "high", "background"), "standard")
    watched.scheduler.handle(PolicyChanged(Policy(tiers=tiers), moved_to), 0.0)
    watched.metrics.settled(record(streams=True))
    goodput = watched.samples["goodput_requests_total"]
    assert goodput[(("met", "false"), ("tier", "standard"))] == 1.0
    assert goodput[(("met", "true"), ("tier", "free"))] == 0.0
    assert watched.samples["tier_ttft_target_seconds"] == {(("tier", "standard"),): 0.1}


def test_what_a_cap_keeps_back_does_not_count_as_waiting(watched: Watched) -> None:
    """Whoever has ten at a time and asks for a thousand would call for more machines."""
    watched.find("gpu0", slots=8)
    for n in range(5):
        request = Request(
            id=f"c{n}", model="m", tier=2, tenant="t", user="u", arrived_at=-9.0,
            caps=(("tenant t", 1),),
        )  # fmt: skip
        watched.scheduler.handle(Arrived(request), 0.0)
    samples, standard = watched.samples, (("tier", "standard"),)
    assert samples["flow_control_held"][standard] == 4.0
    assert samples["flow_control_oldest_wait_seconds"][standard] == 0.0
    assert samples["flow_control_running"][standard] == 1.0
    assert sum(samples["flow_control_queue_size"].values()) == 0.0


def test_the_line_tells_its_oldest_and_what_a_newcomer_must_expect(watched: Watched) -> None:
    """Both are compared with patience: one is too late already, the other will be."""
    watched.find("gpu0", slots=1)
    for n in range(6):
        watched.arrive(f"s{n}")
    watched.now = 12.0
    samples = watched.samples
    assert samples["flow_control_oldest_wait_seconds"][(("tier", "standard"),)] == 12.0
    assert samples["flow_control_oldest_wait_seconds"][(("tier", "critical"),)] == 0.0
    expected = samples["flow_control_expected_wait_seconds"]
    assert expected[(("pool", "m"), ("tier", "critical"))] == 0.0
    assert expected[(("pool", "m"), ("tier", "standard"))] > 1.0
    assert samples["tenant_waiting"][(("tenant", "other"),)] == len(watched.scheduler.waiting)


def test_a_shut_gate_names_what_shuts_it(watched: Watched) -> None:
    """To read that it is shut sends an operator searching; to read "headroom" does not."""
    watched.find("gpu0", slots=1)
    watched.arrive("s0", tier=3)
    watched.arrive("s1", tier=3)
    reasons = {dict(labels)["reason"] for labels in watched.samples["replica_gate_closed"]}
    assert reasons == {"queue"}
    watched.scheduler.handle(DrainAsked("gpu0"), 0.0)
    samples = watched.samples
    assert {dict(labels)["reason"] for labels in samples["replica_gate_closed"]} == {"draining"}
    assert len(samples["replica_gate_closed"]) == len(DEFAULT_TIERS)
    assert samples["replica_draining"] == {(("replica", "gpu0"),): 1.0}
    watched.scheduler.handle(ReplicaLost("gpu0"), 0.0)
    reasons = {dict(labels)["reason"] for labels in watched.samples["replica_gate_closed"]}
    assert reasons == {"lost"}


def test_a_silent_engine_is_told_only_while_it_has_work_of_ours(watched: Watched) -> None:
    """An idle engine is silent all night, and nobody should be woken for it."""
    watched.find("gpu0")
    key = (("replica", "gpu0"),)
    watched.now = 500.0
    assert watched.samples["replica_silent_seconds"][key] == 0.0
    request = Request(id="a", model="m", tier=0, tenant="t", user="u", arrived_at=500.0)
    watched.scheduler.handle(Arrived(request), 500.0)
    watched.now = 540.0
    assert watched.samples["replica_silent_seconds"][key] == 40.0
    watched.scheduler.handle(FirstToken("a"), 540.0)
    assert watched.samples["replica_silent_seconds"][key] == 0.0


def test_a_report_that_is_too_old_is_told(watched: Watched) -> None:
    """The scheduler then goes by its own book alone, and knows nothing of foreign load."""
    watched.find("gpu0")
    key = (("replica", "gpu0"),)
    assert watched.samples["replica_report_stale"][key] == 1.0
    assert "replica_report_age_seconds" not in watched.samples
    report = ReplicaReport(running=0, waiting=0)
    told = ReplicaReported(replica="gpu0", report=report, sent_at=0.0, round_trip_s=0.0)
    watched.scheduler.handle(told, 0.0)
    watched.now = 2.0
    assert watched.samples["replica_report_stale"][key] == 0.0
    assert watched.samples["replica_report_age_seconds"][key] == 2.0
    watched.now = 60.0
    assert watched.samples["replica_report_stale"][key] == 1.0
