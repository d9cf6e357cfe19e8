"""What an emulated engine measures about itself, and how /metrics says it.

Names, help texts, labels and buckets are those of vLLM 0.32. Gauges are those of the last engine
step, as in the real one: between steps they do not move. Aborted requests are counted nowhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.emulator.exposition import Exposition, Histogram
from gateway.sim.replica import Engine

_PER_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
_REQUEST_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

_HISTOGRAMS = {
    "request_prompt_tokens": ("Number of prefill tokens processed.", _REQUEST_TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _REQUEST_TOKENS),
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", _STEP_TOKENS),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT_S),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _PER_TOKEN_S),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _PER_TOKEN_S,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _REQUEST_S),
    "request_queue_time_seconds": (
        "Histogram of time spent in WAITING phase for request.",
        _REQUEST_S,
    ),
    "request_inference_time_seconds": (
        "Histogram of time spent in RUNNING phase for request.",
        _REQUEST_S,
    ),
    "request_prefill_time_seconds": (
        "Histogram of time spent in PREFILL phase for request.",
        _REQUEST_S,
    ),
    "request_decode_time_seconds": (
        "Histogram of time spent in DECODE phase for request.",
        _REQUEST_S,
    ),
    "request_num_preemptions": (
        "Histogram of the number of times a request was preempted.",
        _PREEMPTIONS,
    ),
}

_RUNNING = "Number of requests in model execution batches."
_WAITING = "Number of requests waiting to be processed."
_BY_REASON = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling "
    "capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked "
    "status). Sum of all reasons equals vllm:num_requests_waiting."
)
_KV_USE = "KV-cache usage. 1 means 100 percent usage."
_PREEMPTED = "Cumulative number of preemption from the engine."
_PROMPT_TOKENS = "Number of prefill tokens processed."
_CACHED_TOKENS = "Number of cached prompt tokens (local + external)."
_GENERATION_TOKENS = "Number of generation tokens processed."
_CACHE_QUERIES = "Prefix cache queries, in terms of number of queried tokens."
_CACHE_HITS = "Prefix cache hits, in terms of number of cached tokens."
_SUCCESS = "Count of successfully processed requests."
_REJECTIONS = "Number of admission attempts rejected by a queue limit, by reason."
_CACHE_CONFIG = "Information of the LLMEngine CacheConfig"

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass(frozen=True, slots=True)
class Gauges:
    """The engine at the end of a step."""

    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """One finished sequence; instants in seconds of one clock."""

    arrived_at: float
    started_at: float
    first_token_at: float
    ended_at: float
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    finish_reason: str


class Meters:
    """All counts of one emulator since it began."""

    def __init__(self) -> None:
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self.first_token_s = self._histograms["time_to_first_token_seconds"].observe
        self.inter_token_s = self._histograms["inter_token_latency_seconds"].observe
        self.step_tokens = self._histograms["iteration_tokens_total"].observe
        self.gauges = Gauges()
        self.rejected = 0
        self._finished = dict.fromkeys(FINISH_REASONS, 0)

    def finish(self, timings: Timings) -> None:
        """Count a sequence that came to its own end."""
        decode_s = timings.ended_at - timings.first_token_at
        values: dict[str, float] = {
            "request_prompt_tokens": timings.prompt_tokens,
            "request_generation_tokens": timings.output_tokens,
            "e2e_request_latency_seconds": timings.ended_at - timings.arrived_at,
            "request_queue_time_seconds": timings.started_at - timings.arrived_at,
            "request_inference_time_seconds": timings.ended_at - timings.started_at,
            "request_prefill_time_seconds": timings.first_token_at - timings.started_at,
            "request_decode_time_seconds": decode_s,
            "request_num_preemptions": timings.preemptions,
        }
        if timings.output_tokens > 1:
            mean_s = decode_s / (timings.output_tokens - 1)
            values["request_time_per_output_token_seconds"] = mean_s
        for name, value in values.items():
            self._histograms[name].observe(value)
        self._finished[timings.finish_reason] += 1

    def text(self, engine: Engine, model: str, created: float, *, zero_gauges: bool) -> bytes:
        """The body of /metrics. `created` is the Unix time at which counting began."""
        page = Exposition(created)
        labels = {"engine": "0", "model_name": model}
        self._write_gauges(page, labels, Gauges() if zero_gauges else self.gauges)
        _write_counters(page, labels, engine)
        page.counter(
            "vllm:request_success",
            _SUCCESS,
            [({**labels, "finished_reason": why}, n) for why, n in self._finished.items()],
        )
        rejected = {"max_num_queued_reqs": self.rejected, "max_num_queued_tokens": 0}
        page.counter(
            "vllm:admission_rejections",
            _REJECTIONS,
            [({"model_name": model, "reason": why}, n) for why, n in rejected.items()],
        )
        for name, histogram in self._histograms.items():
            page.histogram(f"vllm:{name}", _HISTOGRAMS[name][0], labels, histogram)
        page.gauge("vllm:cache_config_info", _CACHE_CONFIG, [(_cache_config(engine), 1.0)])
        return page.text()

    @staticmethod
    def _write_gauges(page: Exposition, labels: Mapping[str, str], gauges: Gauges) -> None:
        page.gauge("vllm:num_requests_running", _RUNNING, [(labels, gauges.running)])
        page.gauge("vllm:num_requests_waiting", _WAITING, [(labels, gauges.waiting)])
        by_reason = {"capacity": gauges.waiting, "deferred": 0}
        page.gauge(
            "vllm:num_requests_waiting_by_reason",
            _BY_REASON,
            [({**labels, "reason": why}, n) for why, n in by_reason.items()],
        )
        page.gauge("vllm:kv_cache_usage_perc", _KV_USE, [(labels, gauges.kv_use)])


def _write_counters(page: Exposition, labels: Mapping[str, str], engine: Engine) -> None:
    counters = engine.counters
    for name, about, value in (
        ("prefix_cache_queries", _CACHE_QUERIES, counters.prompt_tokens),
        ("prefix_cache_hits", _CACHE_HITS, 0),
        ("num_preemptions", _PREEMPTED, counters.resumptions),
        ("prompt_tokens", _PROMPT_TOKENS, counters.prompt_tokens),
        ("prompt_tokens_cached", _CACHED_TOKENS, 0),
        ("generation_tokens", _GENERATION_TOKENS, counters.generation_tokens),
    ):
        page.counter(f"vllm:{name}", about, [(labels, value)])


def _cache_config(engine: Engine) -> dict[str, str]:
    config = engine.config
    return {
        "block_size": str(config.block_tokens),
        "cache_dtype": "auto",
        "enable_prefix_caching": "False",
        "engine": "0",
        "gpu_memory_utilization": "0.92",
        "kv_cache_size_tokens": str(config.kv_blocks * config.block_tokens),
        "num_gpu_blocks": str(config.kv_blocks),
        "num_gpu_blocks_override": "None",
    }
