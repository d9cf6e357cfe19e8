"""Reads vLLM's metrics, 0.8 to 0.33, with the names that changed in between.

Sources: the `vllm/v1/metrics` packages of those versions and scrapes of a 0.32.0 server. Each
data-parallel engine has its own lines (`engine="0"`, `"1"`): counts are summed, KV use is averaged.
"""

from collections.abc import Sequence

from gateway.core.report import Rank, ReplicaReport
from gateway.upstream.dialects.dialect import Dialect
from gateway.upstream.dialects.reading import Reading, digits, share, total, whole
from gateway.upstream.dialects.scan import Sample, Scan

NAME = "vllm"

_SCAN = Scan(
    (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:cache_config_info",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:inter_token_latency_seconds_count",
        "vllm:time_per_output_token_seconds_sum",
        "vllm:time_per_output_token_seconds_count",
        "vllm:time_to_first_token_seconds_sum",
        "vllm:time_to_first_token_seconds_count",
        "vllm:request_prefill_time_seconds_sum",
        "vllm:request_prefill_time_seconds_count",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:iteration_tokens_total_count",
        "vllm:num_preemptions_total",
    )
)


def parse(text: bytes) -> ReplicaReport:
    """One scrape of a vLLM server; what it does not say is None."""
    read = Reading(_SCAN.samples(text))
    running = read.samples("vllm:num_requests_running")
    # gpu_cache_usage_perc until 0.11; 0.10 and 0.11 have both, which are the same figure.
    kv_use = read.samples("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    # time_per_output_token_seconds is the same histogram under its name before 0.10.
    # request_time_per_output_token_seconds is another one: it moves only when a request ends.
    return ReplicaReport(
        running=whole(read.total("vllm:num_requests_running", expected=False)),
        waiting=whole(read.total("vllm:num_requests_waiting")),
        kv_use=share([sample.value for sample in kv_use]),
        kv_capacity_tokens=_kv_capacity_tokens(read.samples("vllm:cache_config_info")),
        engines=max(1, len({sample.label("engine") for sample in running})),
        itl_sum_s=read.total(
            "vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"
        ),
        itl_count=read.total(
            "vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"
        ),
        ttft_sum_s=read.total("vllm:time_to_first_token_seconds_sum"),
        ttft_count=read.total("vllm:time_to_first_token_seconds_count"),
        prefill_sum_s=read.total("vllm:request_prefill_time_seconds_sum"),
        prefill_count=read.total("vllm:request_prefill_time_seconds_count"),
        prompt_tokens=read.total("vllm:prompt_tokens_total"),
        generation_tokens=read.total("vllm:generation_tokens_total"),
        iterations=read.total("vllm:iteration_tokens_total_count"),
        preemptions=read.total("vllm:num_preemptions_total"),
        ranks=_ranks(read) if len(running) > 1 else (),
        missing=read.missing,
    )


def _ranks(read: Reading) -> tuple[Rank, ...]:
    """Each data-parallel engine, by its label; none where one of them says too little of itself."""
    told = [
        _by_engine(read.samples(name, expected=False))
        for name in (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:iteration_tokens_total_count",
        )
    ]
    running, waiting, steps = told
    engines = running.keys() & waiting.keys() & steps.keys()
    if len(engines) < max(len(each) for each in told):
        return ()
    return tuple(
        Rank(int(running[engine] + waiting[engine]), steps[engine]) for engine in sorted(engines)
    )


def _by_engine(samples: Sequence[Sample]) -> dict[str, float]:
    """The value of each engine; what is no figure is left out, with its engine."""
    by_engine: dict[str, float] = {}
    for sample in samples:
        engine, value = sample.label("engine"), total([sample.value])
        if engine is not None and value is not None:
            by_engine[engine] = by_engine.get(engine, 0.0) + value
    return by_engine


def _kv_capacity_tokens(config: Sequence[Sample]) -> int | None:
    """KV tokens of the whole replica.

    `kv_cache_size_tokens` is per engine, so the engines' lines add up. `num_gpu_blocks` is not:
    the front end sums it over the engines before it writes the same total on each line.
    """
    sizes = [digits(line.label("kv_cache_size_tokens")) for line in config]
    known = [size for size in sizes if size is not None]
    if known and len(known) == len(sizes):
        return sum(known)
    by_blocks = [_tokens_in_blocks(line) for line in config]
    return max((tokens for tokens in by_blocks if tokens is not None), default=None)


def _tokens_in_blocks(line: Sample) -> int | None:
    blocks, block_size = digits(line.label("num_gpu_blocks")), digits(line.label("block_size"))
    return None if blocks is None or block_size is None else blocks * block_size


DIALECT = Dialect(
    name=NAME,
    marker="vllm:",
    owner="vllm",
    parse=parse,
    accepts_priority=True,
    lower_priority_first=True,
    tells_token_ids=True,
    takes_cache_salt=True,
)
