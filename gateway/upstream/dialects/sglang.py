"""Reads SGLang's metrics (they exist only with `--enable-metrics`) and its server information.

Source: `srt/observability/metrics_collector.py`, `entrypoints/http_server.py`. Its gauges have two
traps. With priority scheduling there is a line with the total under `priority=""` beside one line
per priority. And every rank may write its own line for the same requests.
"""

from collections.abc import Mapping, Sequence

from gateway.core.report import ReplicaReport
from gateway.upstream.dialects.dialect import Dialect, EngineFacts, positive_int
from gateway.upstream.dialects.reading import Reading, share, total, whole
from gateway.upstream.dialects.scan import Sample, Scan

NAME = "sglang"

_SCAN = Scan(
    (
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:token_usage",
        "sglang:max_total_num_tokens",
        "sglang:inter_token_latency_seconds_sum",
        "sglang:inter_token_latency_seconds_count",
        "sglang:time_per_output_token_seconds_sum",
        "sglang:time_per_output_token_seconds_count",
        "sglang:time_to_first_token_seconds_sum",
        "sglang:time_to_first_token_seconds_count",
        "sglang:prompt_tokens_total",
        "sglang:generation_tokens_total",
        "sglang:cuda_graph_passes_total",
        "sglang:num_retracted_requests_total",
    )
)


def parse(text: bytes) -> ReplicaReport:
    """One scrape of an SGLang server; what it does not say is None.

    The gauge `num_retracted_reqs` is no counter, so preemptions stay unknown where the newer
    counter is absent. Forward passes are counted only by newer versions, too.
    """
    read = Reading(_SCAN.samples(text))
    running = _per_engine(read.samples("sglang:num_running_reqs"))
    passes = read.samples("sglang:cuda_graph_passes_total", expected=False)
    retracted = read.samples("sglang:num_retracted_requests_total", expected=False)
    return ReplicaReport(
        running=whole(total(running)),
        waiting=whole(total(_per_engine(read.samples("sglang:num_queue_reqs")))),
        kv_use=share(_per_engine(read.samples("sglang:token_usage"))),
        kv_capacity_tokens=whole(total(_per_engine(read.samples("sglang:max_total_num_tokens")))),
        engines=max(1, len(running)),
        itl_sum_s=read.total(
            "sglang:inter_token_latency_seconds_sum", "sglang:time_per_output_token_seconds_sum"
        ),
        itl_count=read.total(
            "sglang:inter_token_latency_seconds_count",
            "sglang:time_per_output_token_seconds_count",
        ),
        ttft_sum_s=read.total("sglang:time_to_first_token_seconds_sum"),
        ttft_count=read.total("sglang:time_to_first_token_seconds_count"),
        prompt_tokens=read.total("sglang:prompt_tokens_total"),
        generation_tokens=read.total("sglang:generation_tokens_total"),
        iterations=total(_per_engine(passes)),
        preemptions=total(_per_engine(retracted)),
        missing=read.missing,
    )


def _per_engine(samples: Sequence[Sample]) -> list[float]:
    """One value per data-parallel engine: the largest of its ranks, per-priority lines left out.

    A rank may have several lines that differ in another label (`mode`): those add up.
    """
    ranks: dict[tuple[str | None, ...], float] = {}
    for sample in samples:
        if sample.label("priority"):
            continue
        rank = (
            sample.label("dp_rank"),
            sample.label("tp_rank"),
            sample.label("pp_rank"),
            sample.label("moe_ep_rank"),
        )
        ranks[rank] = ranks.get(rank, 0.0) + sample.value
    engines: dict[str | None, float] = {}
    for (dp_rank, *_), value in ranks.items():
        engines[dp_rank] = max(engines.get(dp_rank, value), value)
    return list(engines.values())


def read_info(answer: Mapping[str, object]) -> EngineFacts:
    """Slots from `/server_info`: the effective limit of each engine, else the one configured.

    `effective_max_running_requests_per_dp` is per engine, with one state per engine;
    `max_running_requests` is the start option: for the whole server, and often null.
    """
    states = answer.get("internal_states")
    effective = [
        positive_int(state.get("effective_max_running_requests_per_dp"))
        for state in (states if isinstance(states, list) else [])
        if isinstance(state, dict)
    ]
    known = [slots for slots in effective if slots is not None]
    slots = sum(known) if known else positive_int(answer.get("max_running_requests"))
    return EngineFacts(slots=slots, max_model_len=positive_int(answer.get("context_length")))


DIALECT = Dialect(
    name=NAME,
    marker="sglang:",
    owner="sglang",
    parse=parse,
    accepts_priority=True,
    # A larger value is served first unless --schedule-low-priority-values-first turns it round.
    lower_priority_first=False,
    metrics_flag="--enable-metrics",
    info_paths=("/server_info", "/get_server_info"),
    read_info=read_info,
)
