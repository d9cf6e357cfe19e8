"""The usage that only the gateway asked for is taken out again, and nothing else."""

import pytest

from gateway.api.rewrite import FINGERPRINT_BYTES_MAX, Rewrite
from gateway.api.whole import HELD_BYTES_MAX
from tests.support.shared import shared_path

CONTENT = b'data: {"id":"1","choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"id":"1","choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"


def stripping() -> Rewrite:
    """Nothing else is to change."""
    return Rewrite(model=None, service_tier=None, strips_usage=True)


def stripped(stream: bytes, size: int = 1 << 20) -> bytes:
    """What leaves of `stream` in the end, fed in pieces of `size`."""
    rewrite = stripping()
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    return b"".join([*map(rewrite.chunk, chunks), rewrite.rest()])


def recording(name: str) -> bytes:
    """The stream of a recording, without its head."""
    _, stream = shared_path("fixtures", "http", name).read_bytes().split(b"\r\n\r\n", 1)
    return stream


@pytest.mark.parametrize("size", [1, 2, 7, 220, 1 << 20])
def test_vllm_s_stream_is_the_one_it_sends_unasked(size: int) -> None:
    """Asked for the usage, it moves the fingerprint of the last chunk into the usage chunk."""
    asked = recording("chat_stream_usage.http").replace(b"9177a6b7321a6266", b"9f81965e54b70574")
    assert stripped(asked, size) == recording("chat_stream.http")


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
@pytest.mark.parametrize(
    "name",
    ["chat_stream.http", "chat_n2_stream.http", "completion_batch_stream.http",
     "engine_sigkill_chat_stream.http", "overload_race_chat_stream.http"],
)  # fmt: skip
def test_streams_without_usage_keep_every_byte(name: str, size: int) -> None:
    """An engine may not know the option."""
    assert stripped(recording(name), size) == recording(name)


def test_a_completion_s_usage_goes_and_its_fingerprint_stays() -> None:
    """The text completions of vLLM behave like its chat."""
    left = stripped(recording("completion_stream.http"))
    assert b'"usage"' not in left
    assert left.count(b'"system_fingerprint":"vllm-0.32.0-2ad062d9"}\n\ndata: [DONE]\n\n') == 1


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n"])
@pytest.mark.parametrize("size", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    "usage",
    [
        USAGE,
        USAGE.replace(b"data: ", b"data:"),
        USAGE.replace(b"[],", b"[\t] , ").replace(b'"usage":', b'"usage" : '),
        USAGE.replace(b'"choices":[],', b"").replace(b"}}", b'},"choices":[]}'),
        USAGE.replace(b"data: ", b"id: 7\nevent: message\ndata: "),
        USAGE.replace(b"[],", b"[],\ndata: "),
    ],
)
def test_the_usage_chunk_goes_in_every_framing(usage: bytes, end: bytes, size: int) -> None:
    """Its blank line goes with it: an empty event would trouble some parsers."""
    before, after = CONTENT.replace(b"\n\n", end), DONE.replace(b"\n\n", end)
    stream = before + usage.replace(b"\n\n", end) + after
    assert stripped(stream, size) == before + after


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (b'{"choices":[{}],"usage":null}', b'{"choices":[{}]}'),
        (b'{"choices":[{}], "usage": null }', b'{"choices":[{}] }'),
        (b'{"usage":null,"choices":[{}]}', b'{"choices":[{}]}'),
        (b'{ "usage": null , "choices":[{}]}', b'{ "choices":[{}]}'),
        (b'{"choices":[{"a":"}"}],"usage":{"a":{"b":"}"}},"timings":{"n":1}}',
         b'{"choices":[{"a":"}"}],"timings":{"n":1}}'),
        (b'{"choices":[],"usage":null,"prompt_filter_results":[]}',
         b'{"choices":[],"prompt_filter_results":[]}'),
        (b'{"usage":null}', b"{}"),
        (b'{"choices":[{"usage":{"a":1}}]}', b'{"choices":[{"usage":{"a":1}}]}'),
    ],
)  # fmt: skip
def test_a_chunk_with_content_loses_only_its_usage(event: bytes, left: bytes) -> None:
    """Some engines put `null` on every chunk (OpenAI), or the usage beside the content."""
    assert stripped(b"data: %b\n\n" % event) == b"data: %b\n\n" % left
    assert stripped(b"data: %b\n\n" % event, 1) == b"data: %b\n\n" % left


@pytest.mark.parametrize(
    "content",
    [
        b'"usage"', b'"choices":[],"usage":{}', b"[DONE]", b"\n\ndata: [DONE]\n\n", b"\r", b"\\",
        "北京🙂".encode(), b',"usage":null}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_text_that_looks_like_usage_stays(content: bytes, size: int) -> None:
    """A quote or a newline inside a JSON string is escaped."""
    text = (
        content.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        .replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    )  # fmt: skip
    stream = CONTENT.replace(b'"x"', b'"%b"' % text) + DONE
    assert stripped(stream, size) == stream
    usage = stream.replace(b"[{", b'[{"usage":{"a":1},', 1)  # not the chunk's own
    assert stripped(usage, size) == usage


def test_what_needs_no_change_is_handed_back_itself() -> None:
    """Every stream passes here: nothing may be copied, held or parsed."""
    rewrite = stripping()
    for chunk in (CONTENT, CONTENT * 18, b": keep-alive\n\n", DONE):
        assert rewrite.chunk(chunk) is chunk
    assert rewrite.rest() == b""


def test_only_the_last_event_is_held_and_only_while_incomplete() -> None:
    """A client that waits for its next token must not wait for the one after it."""
    rewrite = stripping()
    assert rewrite.chunk(CONTENT + CONTENT[:9]) == CONTENT
    assert rewrite.chunk(CONTENT[9:-1]) == b""
    assert rewrite.chunk(b"\n") == CONTENT
    assert rewrite.chunk(CONTENT[:-2]) == b""
    assert rewrite.rest() == CONTENT[:-2]


@pytest.mark.parametrize("after", [USAGE, DONE, CONTENT, b": keep-alive\n\n", USAGE + DONE])
def test_the_end_of_a_choice_waits_for_one_event(after: bytes) -> None:
    """Only the usage chunk tells whether something of it belongs there."""
    rewrite = stripping()
    assert rewrite.chunk(CONTENT + FINISH) == CONTENT
    assert rewrite.chunk(after) == FINISH + after.replace(USAGE, b"")


def test_the_end_of_a_choice_is_not_lost_with_the_connection() -> None:
    """The engine may die between the last token and the usage."""
    rewrite = stripping()
    rewrite.chunk(FINISH + DONE[:3])
    assert rewrite.waiting() == FINISH
    assert rewrite.rest() == DONE[:3]
    assert rewrite.rest() == b""


def test_an_end_that_has_its_fingerprint_does_not_wait() -> None:
    """Most engines put it on every chunk."""
    marked = FINISH.replace(b'"id"', b'"system_fingerprint":"x","id"')
    rewrite = stripping()
    assert rewrite.chunk(marked) == marked
    assert rewrite.chunk(USAGE) == b""


def test_ends_that_wait_are_bounded() -> None:
    """An engine that ends choices for ever must not fill the memory."""
    large = FINISH.replace(b"{}", b'{"content":"%b"}' % (b"x" * (HELD_BYTES_MAX // 3)))
    rewrite = stripping()
    left = b"".join(rewrite.chunk(large) for _ in range(9))
    assert len(left) >= 9 * len(large) - HELD_BYTES_MAX
    assert left + rewrite.rest() == large * 9


def test_an_event_too_long_to_hold_passes_and_the_next_one_is_stripped() -> None:
    """It is passed on unchanged rather than fill the memory."""
    large = b'data: {"choices":[{"a":"%b"}]}\n\n' % (b"x" * (2 * HELD_BYTES_MAX))
    assert stripped(large + USAGE + DONE, 64 << 10) == large + DONE


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"no","usage":{}}}\n\n',
        b': "usage":null}\n\n',
        b': ,"usage":null}\n\n',
        b'data: "usage":null}\n\n',
        b'event: ,"usage":null}\n\n',
        b'data: ["usage"]\n\n',
    ],
)
def test_what_is_no_chunk_keeps_every_byte(event: bytes) -> None:
    """Errors and comments are nobody's usage."""
    assert stripped(event) == event


MARK = b',"system_fingerprint":"v1"'
MARKED_USAGE = USAGE.replace(b"}}", b"}" + MARK + b"}")


def marked(event: bytes) -> bytes:
    """As an engine ends a choice that is not asked for usage."""
    return event.replace(b"]}", b"]" + MARK + b"}")


@pytest.mark.parametrize("size", [1, len(FINISH + CONTENT), 1 << 20])
def test_every_choice_of_several_ends_with_the_fingerprint_that_is_known(size: int) -> None:
    """Asked for the usage, vLLM tells it once, after the last choice; unasked, with each end."""
    rewrite = stripping()
    rewrite.fingerprint = MARK
    stream = FINISH + CONTENT + FINISH + CONTENT + FINISH
    asked = stream + MARKED_USAGE + DONE
    left = b"".join(rewrite.chunk(asked[at : at + size]) for at in range(0, len(asked), size))
    assert left == stream.replace(FINISH, marked(FINISH)) + DONE


def test_the_fingerprint_is_learnt_from_any_stream_and_forgotten_with_one_without() -> None:
    """The engine may have been started anew, with other flags or none."""
    rewrite = stripping()
    rewrite.chunk(CONTENT + MARKED_USAGE)
    assert rewrite.fingerprint == MARK
    assert rewrite.chunk(FINISH + MARKED_USAGE.replace(b"v1", b"v2")) == marked(FINISH).replace(
        b"v1", b"v2"
    )
    rewrite.chunk(FINISH + USAGE)
    assert rewrite.fingerprint is None
    long = MARKED_USAGE.replace(b"v1", b"v" * FINGERPRINT_BYTES_MAX)
    assert rewrite.chunk(FINISH + long) == FINISH
    assert rewrite.fingerprint is None


def test_the_end_of_a_choice_is_marked_also_where_the_stream_breaks() -> None:
    """It is what the engine would have sent unasked."""
    rewrite = stripping()
    rewrite.fingerprint = MARK
    rewrite.chunk(FINISH)
    assert rewrite.waiting() == marked(FINISH)
