"""The /metrics text: parsed by the official parser, and compared with a recorded one."""

from prometheus_client.parser import text_string_to_metric_families

from gateway.emulator.exposition import Histogram, shown_float
from gateway.emulator.meters import Gauges, Meters, Timings
from gateway.sim.engine_config import EngineConfig
from gateway.sim.profiles import INSTANT
from gateway.sim.replica import Engine
from tests.support.shared import shared_path

Shape = dict[str, tuple[str, str, frozenset[frozenset[str]]]]


def page(meters: Meters, *, zero_gauges: bool = False) -> str:
    """The text of /metrics."""
    engine = Engine(INSTANT, EngineConfig(kv_blocks=100))
    return meters.text(engine, "tiny", 1.79e9, zero_gauges=zero_gauges).decode()


def finished(meters: Meters, *, output_tokens: int) -> None:
    """Count a sequence that waited 1 s, prefilled for 0.5 s and decoded for 2 s."""
    meters.finish(
        Timings(
            arrived_at=10.0,
            started_at=11.0,
            first_token_at=11.5,
            ended_at=13.5,
            prompt_tokens=7,
            output_tokens=output_tokens,
            preemptions=1,
            finish_reason="length",
        )
    )


def samples(text: str) -> dict[str, float]:
    """Value by name, for samples without a distinguishing label."""
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_the_official_parser_reads_what_was_measured() -> None:
    """Prometheus would reject the page, or the gateway would learn wrong times from it."""
    meters = Meters()
    meters.gauges = Gauges(running=4, waiting=8, kv_use=0.25)
    meters.first_token_s(1.5)
    meters.inter_token_s(0.02)
    finished(meters, output_tokens=5)
    values = samples(page(meters))
    assert values["vllm:num_requests_running"] == 4
    assert values["vllm:num_requests_waiting"] == 8
    assert values["vllm:kv_cache_usage_perc"] == 0.25
    assert values["vllm:time_to_first_token_seconds_sum"] == 1.5
    assert values["vllm:request_queue_time_seconds_sum"] == 1.0
    assert values["vllm:request_prefill_time_seconds_sum"] == 0.5
    assert values["vllm:request_decode_time_seconds_sum"] == 2.0
    assert values["vllm:request_time_per_output_token_seconds_sum"] == 0.5
    assert values["vllm:e2e_request_latency_seconds_sum"] == 3.5


def test_a_single_token_has_no_time_per_token() -> None:
    """A division by zero, or a zero that drags the mean down."""
    meters = Meters()
    finished(meters, output_tokens=1)
    assert samples(page(meters))["vllm:request_time_per_output_token_seconds_count"] == 0


def test_zero_gauges_hide_the_load_and_nothing_else() -> None:
    """A cold start, whose gauges read 0 while counters grow, could not be played."""
    meters = Meters()
    meters.gauges = Gauges(running=4, waiting=8, kv_use=0.25)
    meters.inter_token_s(0.02)
    values = samples(page(meters, zero_gauges=True))
    assert values["vllm:num_requests_running"] == 0
    assert values["vllm:inter_token_latency_seconds_count"] == 1


def test_buckets_are_cumulative_and_their_bounds_inclusive() -> None:
    """Quantiles computed from the page would be wrong."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1]


def test_numbers_are_written_as_prometheus_clients_do() -> None:
    """Parsers made for the real page would meet another notation."""
    numbers = (0.0, 4.0, 123456.5, 1e6, 1234567.0, 1.79598856e9, 1e-7, float("inf"))
    assert [shown_float(number) for number in numbers] == [
        *("0.0", "4.0", "123456.5", "1e+06", "1.234567e+06", "1.79598856e+09", "1e-07", "+Inf")
    ]


def test_each_family_has_the_help_type_labels_and_buckets_of_the_real_one() -> None:
    """A gateway that works here would find nothing in a real engine's page."""
    recorded = shapes(shared_path("fixtures", "metrics_loaded_4run_8wait.txt").read_text())
    ours = shapes(page(Meters()))
    assert len(ours) > 30
    config = ours.pop("vllm:cache_config_info")
    assert config[0] == recorded["vllm:cache_config_info"][0]
    assert {name: recorded.get(name) for name in ours} == ours


def shapes(text: str) -> Shape:
    """Help, type and sample labels by family; label values count only where they name a bucket."""
    return {
        family.name: (
            family.documentation,
            family.type,
            frozenset(
                frozenset(
                    {sample.name, *sample.labels, sample.labels.get("le", "")}
                    | {sample.labels.get("reason", ""), sample.labels.get("finished_reason", "")}
                )
                for sample in family.samples
            ),
        )
        for family in text_string_to_metric_families(text)
    }
