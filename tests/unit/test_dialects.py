"""Each dialect reads its engine's text as the engine means it; recordings give exact figures."""

import pytest

from gateway.core.report import Rank, ReplicaReport
from gateway.upstream.dialects import llamacpp, sglang, tgi, vllm
from gateway.upstream.dialects.dialect import Dialect, EngineFacts
from gateway.upstream.dialects.registry import DIALECTS, by_name, by_owner, detect
from tests.support.shared import shared_path

VLLM_LOADED = ReplicaReport(
    running=4,
    waiting=8,
    kv_use=0.04761904761904767,
    kv_capacity_tokens=10880,
    engines=1,
    itl_sum_s=42.568326093999985,
    itl_count=3474.0,
    ttft_sum_s=43.63987731933594,
    ttft_count=25.0,
    prefill_sum_s=0.35419143599995095,
    prefill_count=21.0,
    prompt_tokens=156.0,
    generation_tokens=3499.0,
    iterations=990.0,
    preemptions=0.0,
)
NOTHING = ReplicaReport()
NOT_METRICS = (b"", b"<html>502</html>", b'{"error": "Unauthorized"}', bytes(range(256)))


def recorded(name: str) -> bytes:
    """A recording or sample of an engine's metrics text."""
    return shared_path("fixtures", name).read_bytes()


# --- vLLM -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "metrics_loaded_4run_8wait.txt",
        "metrics_vllm_0.10_derived.txt",
        "metrics_vllm_0.8_derived.txt",
    ],
)
def test_vllm_under_load_reads_the_same_whatever_its_version_calls_it(name: str) -> None:
    """A renamed gauge once read as 0 % KV use: an upgraded fleet was flooded in silence."""
    assert vllm.parse(recorded(name)) == VLLM_LOADED


def test_an_idle_vllm_reports_zeros_not_unknowns() -> None:
    """A fresh replica that seems unknown would be used only with caution, for no reason."""
    assert vllm.parse(recorded("metrics_fresh_idle.txt")) == ReplicaReport(
        running=0,
        waiting=0,
        kv_use=0.0,
        kv_capacity_tokens=2_097_152,
        itl_sum_s=0.0,
        itl_count=0.0,
        ttft_sum_s=0.0,
        ttft_count=0.0,
        prefill_sum_s=0.0,
        prefill_count=0.0,
        prompt_tokens=0.0,
        generation_tokens=0.0,
        iterations=0.0,
        preemptions=0.0,
    )


def test_vllm_engines_behind_one_address_are_added_up() -> None:
    """With the last line winning, half of a data-parallel replica's load would be invisible."""
    report = vllm.parse(recorded("metrics_dp2.txt"))
    assert report == ReplicaReport(
        running=0,
        waiting=0,
        kv_use=0.0,
        kv_capacity_tokens=262_144,
        engines=2,
        itl_sum_s=0.4339385130001574,
        itl_count=114.0,
        ttft_sum_s=0.1717381477355957,
        ttft_count=6.0,
        prefill_sum_s=0.060005988999591864,
        prefill_count=6.0,
        prompt_tokens=12.0,
        generation_tokens=120.0,
        iterations=81.0,
        preemptions=0.0,
        ranks=(Rank(0, 41.0), Rank(0, 40.0)),
    )


RANKS = (
    b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
    b'vllm:num_requests_running{engine="1",model_name="m"} 5.0\n'
    b'vllm:num_requests_waiting{engine="1",model_name="m"} 2.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="m"} 1.0\n'
    b'vllm:iteration_tokens_total_count{engine="0",model_name="m"} 70.0\n'
    b'vllm:iteration_tokens_total_count{engine="1",model_name="m"} 80.0\n'
)


def test_vllm_engines_are_also_told_one_by_one() -> None:
    """One of them that stands still cannot be seen in a sum that grows."""
    report = vllm.parse(RANKS)
    assert (report.running, report.waiting, report.iterations) == (8, 3, 150.0)
    assert report.ranks == (Rank(4, 70.0), Rank(7, 80.0))


@pytest.mark.parametrize(
    "text",
    [
        RANKS.rpartition(b"vllm:")[0],
        RANKS.replace(b" 70.0", b" NaN"),
        RANKS.replace(b'iteration_tokens_total_count{engine="1"', b"other{x"),
        b"\n".join(line for line in RANKS.splitlines() if b'engine="0"' in line),
    ],
    ids=["a step short", "no figure", "another label", "one engine"],
)
def test_vllm_engines_that_say_too_little_are_not_told_one_by_one(text: bytes) -> None:
    """A rank taken for one that stands still loses its streams."""
    assert vllm.parse(text).ranks == ()


def test_vllm_gauges_of_two_engines_are_summed_and_kv_use_is_their_mean() -> None:
    """Two engines at 20 % and 60 % are one replica at 40 %, not at 80 % or 60 %."""
    report = vllm.parse(
        b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        b'vllm:num_requests_running{engine="1",model_name="m"} 5.0\n'
        b'vllm:num_requests_waiting{engine="0",model_name="m"} 1.0\n'
        b'vllm:num_requests_waiting{engine="1",model_name="m"} 2.0\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1.0\n'
        b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2\n'
        b'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6\n'
    )
    assert (report.running, report.waiting, report.engines) == (8, 3, 2)
    assert report.kv_use == pytest.approx(0.4)


def test_vllm_lines_of_several_model_names_belong_to_one_engine() -> None:
    """Two served names of one engine must not read as data parallelism: slots would double."""
    report = vllm.parse(
        b'vllm:num_requests_running{engine="0",model_name="a"} 1.0\n'
        b'vllm:num_requests_running{engine="0",model_name="b"} 2.0\n'
    )
    assert (report.running, report.engines) == (3, 1)


@pytest.mark.parametrize(
    ("lines", "tokens"),
    [
        (['kv_cache_size_tokens="100",num_gpu_blocks="9",block_size="16"'], 100),
        (['engine="0",kv_cache_size_tokens="100"', 'engine="1",kv_cache_size_tokens="100"'], 200),
        (['num_gpu_blocks="9",block_size="16"'], 144),
        (['engine="0",num_gpu_blocks="9",block_size="16"',
          'engine="1",num_gpu_blocks="9",block_size="16"'], 144),
        (['kv_cache_size_tokens="None",num_gpu_blocks="9",block_size="16"'], 144),
        (['engine="0",kv_cache_size_tokens="100",num_gpu_blocks="9",block_size="16"',
          'engine="1",kv_cache_size_tokens="None",num_gpu_blocks="9",block_size="16"'], 144),
        (['kv_cache_size_tokens="None",num_gpu_blocks="None",block_size="16"'], None),
        (['kv_cache_size_tokens="0"'], None),
        (['kv_cache_size_tokens="' + "9" * 5_000 + '"'], None),
        (['kv_cache_size_tokens="²"'], None),
    ],
)  # fmt: skip
def test_vllm_kv_capacity_is_that_of_the_whole_replica(
    lines: list[str], tokens: int | None
) -> None:
    """Block counts are already summed over engines, token counts are not: 2x would overfill it."""
    text = "".join(f"vllm:cache_config_info{{{line}}} 1.0\n" for line in lines)
    assert vllm.parse(text.encode()).kv_capacity_tokens == tokens


def test_vllm_without_a_metric_says_so_and_claims_no_zero() -> None:
    """An operator must learn that a gauge is gone; zero KV use would invite overload."""
    report = vllm.parse(b'vllm:num_requests_running{engine="0"} 4.0\n')
    assert (report.running, report.waiting, report.kv_use) == (4, None, None)
    assert "vllm:num_requests_waiting" in report.missing
    assert "vllm:kv_cache_usage_perc" in report.missing
    assert "vllm:num_requests_running" not in report.missing
    assert "vllm:gpu_cache_usage_perc" not in report.missing


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
def test_a_value_that_is_no_count_is_unknown(value: str) -> None:
    """`int(NaN)` once killed a scraper for good; and -1 running is not spare capacity."""
    text = (
        f'vllm:num_requests_running{{engine="0"}} {value}\n'
        'vllm:num_requests_running{engine="1"} 4.0\n'
        f"vllm:kv_cache_usage_perc {value}\n"
    )
    report = vllm.parse(text.encode())
    assert (report.running, report.kv_use, report.engines) == (None, None, 2)


def test_created_gauges_and_histograms_of_like_name_are_no_counters() -> None:
    """A start time of 1.8e9 seconds read as tokens would look like an engine on fire."""
    report = vllm.parse(
        b"vllm:iteration_tokens_total_sum 3655.0\n"
        b"vllm:iteration_tokens_total_count 990.0\n"
        b"vllm:iteration_tokens_total_created 1.79e+09\n"
        b"vllm:prompt_tokens_created 1.79e+09\n"
        b'vllm:prompt_tokens_by_source_total{source="local_compute"} 156.0\n'
    )
    assert report.iterations == 990.0
    assert report.prompt_tokens is None


# --- SGLang ---------------------------------------------------------------------------------------


def test_sglang_reads_exactly() -> None:
    """A fleet that mixes engines compares loads: a misread one would be starved or flooded."""
    assert sglang.parse(recorded("metrics_sglang_sample.txt")) == ReplicaReport(
        running=4,
        waiting=8,
        kv_use=0.28,
        kv_capacity_tokens=44_232,
        itl_sum_s=96.3,
        itl_count=7447.0,
        ttft_sum_s=62.1,
        ttft_count=110.0,
        prompt_tokens=8128.0,
        generation_tokens=7557.0,
    )


def test_sglang_priority_lines_are_not_added_to_their_total() -> None:
    """With priority scheduling on, twice the load would be seen and half the engine left idle."""
    report = sglang.parse(recorded("metrics_sglang_priority_sample.txt"))
    assert (report.running, report.waiting, report.engines) == (4, 8, 1)
    assert report.kv_use is None
    assert report.missing == (
        "sglang:token_usage",
        "sglang:max_total_num_tokens",
        "sglang:inter_token_latency_seconds_sum",
        "sglang:inter_token_latency_seconds_count",
        "sglang:time_to_first_token_seconds_sum",
        "sglang:time_to_first_token_seconds_count",
        "sglang:prompt_tokens_total",
        "sglang:generation_tokens_total",
    )


def test_sglang_ranks_repeat_a_figure_and_engines_add_to_it() -> None:
    """Eight tensor-parallel ranks report the same requests: eight times the load would be seen."""
    report = sglang.parse(
        b'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 3.0\n'
        b'sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 3.0\n'
        b'sglang:num_running_reqs{dp_rank="1",tp_rank="2"} 5.0\n'
        b'sglang:num_running_reqs{dp_rank="1",tp_rank="3"} 5.0\n'
        b'sglang:token_usage{dp_rank="0",tp_rank="0"} 0.2\n'
        b'sglang:token_usage{dp_rank="1",tp_rank="2"} 0.4\n'
        b'sglang:max_total_num_tokens{dp_rank="0",tp_rank="0"} 1000.0\n'
        b'sglang:max_total_num_tokens{dp_rank="1",tp_rank="2"} 1000.0\n'
        b'sglang:cuda_graph_passes_total{dp_rank="0",tp_rank="0",mode="decode_none"} 7.0\n'
        b'sglang:cuda_graph_passes_total{dp_rank="0",tp_rank="0",mode="prefill_none"} 2.0\n'
        b'sglang:cuda_graph_passes_total{dp_rank="0",tp_rank="1",mode="decode_none"} 7.0\n'
    )
    assert (report.running, report.engines, report.kv_capacity_tokens) == (8, 2, 2000)
    assert report.kv_use == pytest.approx(0.3)
    assert report.iterations == 9.0


def test_sglang_retractions_come_from_the_counter_only() -> None:
    """The gauge of the same name falls again: as a counter it would show negative preemptions."""
    assert sglang.parse(b"sglang:num_retracted_reqs 3.0\n").preemptions is None
    assert sglang.parse(b"sglang:num_retracted_requests_total 3.0\n").preemptions == 3.0


@pytest.mark.parametrize(
    ("answer", "slots"),
    [
        ({"internal_states": [{"effective_max_running_requests_per_dp": 52}]}, 52),
        ({"internal_states": [{"effective_max_running_requests_per_dp": 52}] * 2}, 104),
        (
            {
                "max_running_requests": 64,
                "internal_states": [{"effective_max_running_requests_per_dp": 48}],
            },
            48,
        ),
        ({"max_running_requests": 64, "internal_states": [{}]}, 64),
        ({"max_running_requests": None}, None),
        ({"max_running_requests": True}, None),
        ({"max_running_requests": "64", "internal_states": "x"}, None),
        ({"max_running_requests": -1, "internal_states": [7, None]}, None),
        ({}, None),
    ],
)
def test_sglang_slots_are_the_effective_ones_of_all_engines(
    answer: dict[str, object], slots: int | None
) -> None:
    """The start option is often null, or larger than what memory allows."""
    assert sglang.read_info(answer).slots == slots


# --- TGI ------------------------------------------------------------------------------------------


def test_tgi_reads_exactly() -> None:
    """TGI users would otherwise be gated by a load that is always zero."""
    assert tgi.parse(recorded("metrics_tgi_sample.txt")) == ReplicaReport(
        running=4,
        waiting=8,
        itl_sum_s=2.1,
        itl_count=110.0,
        generation_tokens=7557.0,
        iterations=900.0,
        missing=("tgi_request_input_length_sum",),
    )


def test_tgi_batch_steps_are_summed_over_prefill_and_decode() -> None:
    """During a long prefill only that line moves: the engine would be taken for frozen."""
    report = tgi.parse(
        b'tgi_batch_inference_count{method="prefill"} 10\n'
        b'tgi_batch_inference_count{method="decode"} 900\n'
    )
    assert report.iterations == 910.0


def test_tgi_concurrency_limit_is_not_taken_for_slots() -> None:
    """It counts queued requests too: as slots it would bury the queue inside the engine."""
    info = {"model_id": "m", "max_concurrent_requests": 128, "max_total_tokens": 2048}
    assert tgi.read_info(info) == EngineFacts(max_model_len=2048, model="m")
    assert tgi.read_info({**info, "max_batch_size": None}).slots is None
    assert tgi.read_info({**info, "max_batch_size": 32}).slots == 32
    assert tgi.read_info({"model_id": ""}) == EngineFacts()


# --- llama.cpp ------------------------------------------------------------------------------------


def test_llamacpp_reads_exactly() -> None:
    """A desktop engine has four slots: misreading its queue fills it for minutes."""
    assert llamacpp.parse(recorded("metrics_llamacpp_sample.txt")) == ReplicaReport(
        running=4,
        waiting=8,
        itl_sum_s=96.3,
        itl_count=7557.0,
        prefill_sum_s=12.3,
        prompt_tokens=8128.0,
        generation_tokens=7557.0,
        iterations=2500.0,
    )


def test_llamacpp_tells_its_slots_and_the_context_of_one() -> None:
    """Its slots are few and fixed at start; guessing 256 would queue inside it."""
    props = {"total_slots": 4, "default_generation_settings": {"n_ctx": 4096}}
    assert llamacpp.read_info(props) == EngineFacts(slots=4, max_model_len=4096)
    assert llamacpp.read_info({"default_generation_settings": [1]}) == EngineFacts()


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("text", NOT_METRICS)
def test_text_that_is_no_metrics_is_unknown_in_every_dialect(dialect: Dialect, text: bytes) -> None:
    """An error page at /metrics must read as "unknown", not as an idle engine."""
    report = dialect.parse(text)
    assert report.missing
    assert report == ReplicaReport(missing=report.missing)
    assert dialect.read_info({}) == EngineFacts()


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("metrics_loaded_4run_8wait.txt", "vllm"),
        ("metrics_fresh_idle.txt", "vllm"),
        ("metrics_dp2.txt", "vllm"),
        ("metrics_vllm_0.10_derived.txt", "vllm"),
        ("metrics_vllm_0.8_derived.txt", "vllm"),
        ("metrics_sglang_sample.txt", "sglang"),
        ("metrics_sglang_priority_sample.txt", "sglang"),
        ("metrics_tgi_sample.txt", "tgi"),
        ("metrics_llamacpp_sample.txt", "llamacpp"),
    ],
)
def test_each_engine_is_told_by_its_metrics(name: str, engine: str) -> None:
    """Nobody should have to configure what the engine says itself."""
    found = detect(recorded(name))
    assert found is by_name(engine)


@pytest.mark.parametrize("text", [*NOT_METRICS, b"tgix 1\nmy_tgi_queue_size 1\n# see vllm: docs\n"])
def test_other_text_is_told_to_be_no_engine(text: bytes) -> None:
    """A node exporter at the configured address is not an engine."""
    assert detect(text) is None


def test_an_engine_without_metrics_may_be_told_by_its_model_cards() -> None:
    """SGLang without --enable-metrics still deserves the hint how to get its load seen."""
    assert by_owner("sglang") is by_name("sglang")
    assert by_owner("vllm") is by_name("vllm")
    for nobody in (None, 7, "", "openai", ["vllm"]):
        assert by_owner(nobody) is None


def test_an_unknown_engine_name_is_answered_with_the_known_ones() -> None:
    """A typing error in the configuration should explain itself."""
    with pytest.raises(ValueError, match="'vlm': one of vllm, sglang, tgi, llamacpp"):
        by_name("vlm")


def test_the_first_tier_gets_the_value_its_engine_serves_first() -> None:
    """With SGLang's order turned round, background work would overtake critical requests."""
    assert [by_name("vllm").priority_value(tier, 4) for tier in range(4)] == [0, 1, 2, 3]
    assert [by_name("sglang").priority_value(tier, 4) for tier in range(4)] == [3, 2, 1, 0]
    assert [dialect.name for dialect in DIALECTS if not dialect.accepts_priority] == [
        "tgi",
        "llamacpp",
    ]


def test_a_tier_that_does_not_exist_is_a_programmers_error() -> None:
    """A rank beyond the last would silently become the most urgent one in SGLang."""
    with pytest.raises(AssertionError):
        by_name("vllm").priority_value(4, 4)
