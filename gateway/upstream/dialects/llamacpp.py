"""Reads the metrics (they exist only with `--metrics`) and `/props` of llama.cpp's server.

Source: `tools/server/README.md`. No labels, no histograms, no KV cache figures; the seconds and
tokens it counts are added when a request ends.
"""

from collections.abc import Mapping

from gateway.core.report import ReplicaReport
from gateway.upstream.dialects.dialect import Dialect, EngineFacts, positive_int
from gateway.upstream.dialects.reading import Reading, whole
from gateway.upstream.dialects.scan import Scan

NAME = "llamacpp"

_SCAN = Scan(
    (
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:tokens_predicted_seconds_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:prompt_seconds_total",
        "llamacpp:prompt_tokens_total",
        "llamacpp:n_decode_total",
    )
)


def parse(text: bytes) -> ReplicaReport:
    """One scrape of a llama.cpp server.

    The seconds of generation are summed over requests that overlap, so that over the tokens they
    are the time per token as one request sees it. Prefill seconds come without a request count.
    """
    read = Reading(_SCAN.samples(text))
    generated = read.total("llamacpp:tokens_predicted_total")
    return ReplicaReport(
        running=whole(read.total("llamacpp:requests_processing")),
        waiting=whole(read.total("llamacpp:requests_deferred")),
        itl_sum_s=read.total("llamacpp:tokens_predicted_seconds_total"),
        itl_count=generated,
        prefill_sum_s=read.total("llamacpp:prompt_seconds_total"),
        prompt_tokens=read.total("llamacpp:prompt_tokens_total"),
        generation_tokens=generated,
        iterations=read.total("llamacpp:n_decode_total"),
        missing=read.missing,
    )


def read_info(answer: Mapping[str, object]) -> EngineFacts:
    """Facts from `/props`: its slots, and the context of one slot."""
    settings = answer.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    return EngineFacts(
        slots=positive_int(answer.get("total_slots")), max_model_len=positive_int(context)
    )


DIALECT = Dialect(
    name=NAME,
    marker="llamacpp:",
    owner="llamacpp",
    parse=parse,
    accepts_priority=False,
    lower_priority_first=True,
    metrics_flag="--metrics",
    info_paths=("/props",),
    read_info=read_info,
)
