"""Reads the metrics and `/info` of Hugging Face's text-generation-inference.

Source: its metrics reference and `router/src/lib.rs`. It reports no KV cache and no time to first
token, names counters without `_total`, and writes a metric only once it has a value: a server that
has served nothing yet may answer with an empty page, which is unknown, not idle.
"""

from collections.abc import Mapping

from gateway.core.report import ReplicaReport
from gateway.upstream.dialects.dialect import Dialect, EngineFacts, positive_int
from gateway.upstream.dialects.reading import Reading, whole
from gateway.upstream.dialects.scan import Scan

NAME = "tgi"

_SCAN = Scan(
    (
        "tgi_batch_current_size",
        "tgi_queue_size",
        "tgi_request_mean_time_per_token_duration_sum",
        "tgi_request_mean_time_per_token_duration_count",
        "tgi_request_input_length_sum",
        "tgi_request_generated_tokens_sum",
        "tgi_batch_inference_count",
    )
)


def parse(text: bytes) -> ReplicaReport:
    """One scrape of a TGI server.

    Its time per token is a mean per finished request, so the ITL figures count requests, not
    tokens, and the token counters move when requests end. The batch counter moves with each step.
    """
    read = Reading(_SCAN.samples(text))
    return ReplicaReport(
        running=whole(read.total("tgi_batch_current_size")),
        waiting=whole(read.total("tgi_queue_size")),
        itl_sum_s=read.total("tgi_request_mean_time_per_token_duration_sum"),
        itl_count=read.total("tgi_request_mean_time_per_token_duration_count"),
        prompt_tokens=read.total("tgi_request_input_length_sum"),
        generation_tokens=read.total("tgi_request_generated_tokens_sum"),
        iterations=read.total("tgi_batch_inference_count"),
        missing=read.missing,
    )


def read_info(answer: Mapping[str, object]) -> EngineFacts:
    """Facts from `/info`.

    Slots are `max_batch_size`, mostly null: TGI fills a batch by tokens. `max_concurrent_requests`
    is a trap: it bounds running *and* queued requests (128 by default, beyond it 429), so taken
    as slots it would let a hundred requests pile up inside the engine.
    """
    model = answer.get("model_id")
    return EngineFacts(
        slots=positive_int(answer.get("max_batch_size")),
        max_model_len=positive_int(answer.get("max_total_tokens")),
        model=model if isinstance(model, str) and model else None,
    )


DIALECT = Dialect(
    name=NAME,
    marker="tgi_",
    owner=None,
    parse=parse,
    accepts_priority=False,
    lower_priority_first=True,
    info_paths=("/info",),
    read_info=read_info,
)
