"""The fake engine's bytes: well-formed HTTP, of the promised sizes, in vLLM's shapes."""

import json
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.bench import replies
from gateway.bench.replies import Shape, chat_shape, chunk, completion_shape, metrics, stamp_of

SHAPES = [pytest.param(chat_shape(), id="chat"), pytest.param(completion_shape(), id="completion")]


def unchunked(piece: bytes) -> bytes:
    """The content of exactly one HTTP chunk."""
    size, _, rest = piece.partition(b"\r\n")
    content, end = rest[: int(size, 16)], rest[int(size, 16) :]
    assert end == b"\r\n"
    return content


def event(piece: bytes) -> Any:
    """The JSON of a chunk that is one server-sent event."""
    content = unchunked(piece)
    assert content.startswith(b"data: ")
    assert content.endswith(b"\n\n")
    return json.loads(content[len(b"data: ") :])


def body_of(response: bytes) -> bytes:
    """The body of a response, checked against its length."""
    head, _, body = response.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    assert int(found[1]) == len(body)
    return body


@pytest.mark.parametrize("shape", SHAPES)
def test_a_content_event_has_the_size_that_figures_are_quoted_for(shape: Shape) -> None:
    """CPU per event at another size is not comparable with anybody's."""
    assert len(unchunked(shape.content(123))) == replies.EVENT_BYTES
    assert len(unchunked(shape.content(10**15))) == replies.EVENT_BYTES


@pytest.mark.parametrize("shape", SHAPES)
def test_a_content_event_carries_its_stamp_in_the_text(shape: Shape) -> None:
    """Without it no client can tell how long an event was on its way."""
    choice = event(shape.content(1_234_567_890))["choices"][0]
    text = choice["delta"]["content"] if "delta" in choice else choice["text"]
    assert text.startswith("@T0000001234567890@")
    assert choice["finish_reason"] is None


@pytest.mark.parametrize("shape", SHAPES)
def test_the_plain_answer_is_about_600_bytes_of_json_with_usage(shape: Shape) -> None:
    """The gateway accounts by usage; a mock without it would skip work that is measured."""
    body = body_of(shape.json)
    assert abs(len(body) - replies.JSON_BYTES) <= 5
    answer = json.loads(body)
    assert answer["model"] == replies.MODEL
    assert answer["usage"]["total_tokens"] == (
        answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_ends_with_a_reason_and_the_true_usage(shape: Shape) -> None:
    """A stream without a finish reason counts as broken, and would be retried or not charged."""
    assert event(shape.finish)["choices"][0]["finish_reason"] == "length"
    last = event(shape.usage(64))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": replies.PROMPT_TOKENS,
        "completion_tokens": 64,
        "total_tokens": replies.PROMPT_TOKENS + 64,
    }


def test_a_chat_stream_opens_with_the_role() -> None:
    """A gateway that commits at the first event must meet the same first event as with vLLM."""
    head, _, rest = chat_shape().opening.partition(b"\r\n\r\n")
    assert b"text/event-stream" in head
    assert b"transfer-encoding: chunked" in head
    assert event(rest)["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_a_completion_stream_has_no_role() -> None:
    """That route's first event is text."""
    assert completion_shape().opening == replies.STREAM_HEAD


def test_stamps_have_one_width() -> None:
    """The chunk's size is written once for all events: a longer stamp would break the framing."""
    assert {len(stamp_of(ns)) for ns in (0, 1, 10**12, 10**15)} == {replies.STAMP_DIGITS + 3}


def test_a_chunk_is_framed_by_its_size() -> None:
    """One wrong digit, and every client hangs waiting for bytes that never come."""
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


@pytest.mark.parametrize(
    ("response", "status"),
    [
        (replies.MODELS, 200),
        (replies.HEALTHY, 200),
        (replies.VERSION, 200),
        (replies.NOT_FOUND, 404),
        (replies.BAD_REQUEST, 400),
    ],
)
def test_every_fixed_answer_is_whole(response: bytes, status: int) -> None:
    """A wrong length leaves a probe waiting, and the gateway never gets ready."""
    assert response.startswith(f"HTTP/1.1 {status} ".encode())
    body = body_of(response)
    assert not body or json.loads(body)


def test_the_model_card_names_the_model() -> None:
    """Routers discover what to route by it."""
    assert json.loads(body_of(replies.MODELS))["data"][0]["id"] == replies.MODEL


def test_metrics_are_prometheus_text_with_true_values() -> None:
    """A gateway that reads a wrong number of running requests would place and hold wrongly."""
    text = body_of(metrics(running=7, tokens=321, itl=(4, 0.5), ttft=(2, 0.25))).decode()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["vllm:num_requests_running"] == 7
    assert found["vllm:num_requests_waiting"] == 0
    assert found["vllm:generation_tokens_total"] == 321
    assert found["vllm:inter_token_latency_seconds_count"] == 4
    assert found["vllm:inter_token_latency_seconds_sum"] == 0.5
    assert found["vllm:time_to_first_token_seconds_count"] == 2
    assert found["vllm:time_to_first_token_seconds_sum"] == 0.25
    assert 0 < found["vllm:kv_cache_usage_perc"] < 1


def test_metrics_tell_the_size_of_the_cache() -> None:
    """Without it a gateway cannot tell how much fits, and the gate would not be wide open."""
    text = body_of(metrics(running=0, tokens=0, itl=(0, 0.0), ttft=(0, 0.0))).decode()
    labels = next(
        sample.labels
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    )
    assert int(labels["block_size"]) * int(labels["num_gpu_blocks"]) == int(
        labels["kv_cache_size_tokens"]
    )


def test_ids_are_told_where_they_are_asked_for() -> None:
    """What a gateway pays to remember them could not be measured against an engine without any."""
    shape = chat_shape().telling_ids
    assert shape is not None
    assert b'"prompt_token_ids":[0, 1' in shape.opening
    size, _, event = shape.content(1).partition(b"\r\n")
    assert int(size, 16) == replies.EVENT_BYTES_WITH_IDS == len(event) - 2
    assert b'"token_ids":[123456]' in event
    assert b"token_ids" not in chat_shape().content(1)
