"""What a stream shows of itself: where it can be cut, and why it cannot be gone on with."""

import json
from typing import Any

import pytest

from gateway.continuation import strand as strand_module
from gateway.continuation.obstacles import Obstacle
from gateway.continuation.strand import IDS_BYTES_MAX, Strand
from tests.support.breaking import CHAT, body, told
from tests.support.playing import played
from tests.support.shared import shared_path

ROLE = {"role": "assistant", "content": ""}
DONE = b"data: [DONE]\n\n"


def strand(**changes: bool) -> Strand:
    """Of a greedy chat."""
    return Strand(**{"is_chat": True, "is_greedy": True, "shows_ids": False, **changes})


def event(
    delta: dict[str, Any], ids: list[int] | None = None, *, ends: str | None = None, **more: Any
) -> bytes:
    """One chunk of a chat."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": ends}
    chunk = {"id": "c", "object": "o", "created": 1, "model": "m",
             "choices": [{**choice, "token_ids": ids}], **more}  # fmt: skip
    text = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def begun(**changes: bool) -> Strand:
    """A chat whose role and prompt were told."""
    found = strand(**changes)
    found.chunk(event(ROLE, prompt_token_ids=[7, 8]))
    return found


def recorded(name: str) -> bytes:
    """The body of a recorded stream, without what differs between two of them."""
    answer = shared_path("fixtures", "http", name).read_bytes().replace(b"\r\n", b"\n")
    identity = json.loads(answer.partition(b"data: ")[2].partition(b"\n")[0])["id"].encode()
    return answer.partition(b"\n\n")[2].replace(identity, b"X")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_a_real_engines_stream_is_as_if_nobody_had_asked_for_ids(size: int) -> None:
    """Clients that choke on unknown members would choke on a tier's setting."""
    data = recorded("chat_stream_token_ids.http")
    found = strand()
    heard = b"".join(found.chunk(data[at : at + size]) for at in range(0, len(data), size))
    assert heard == recorded("chat_stream_usage.http")
    assert (found.prompt_tokens, found.output_tokens, found.kept_tokens) == (23, 6, 6)
    assert found.cut(0).startswith(b"1,88,445,")
    assert found.cut(0).endswith(b",231,584,902,882,231,333")


def test_ids_without_their_text_are_generated_again() -> None:
    """The next replica would begin inside a character."""
    found = begun()
    found.chunk(event({"content": "a"}, [1]))
    found.chunk(event({"content": ""}, [2]))
    found.chunk(event({"content": ""}, [3, 4]))
    assert found.can_go_on
    assert (found.output_tokens, found.kept_tokens, found.doubtful_ids) == (4, 1, 0)
    assert found.cut(0) == b"7,8,1"


def test_several_ids_of_one_text_are_a_question() -> None:
    """The text of the last of them may not have been told yet."""
    found = begun()
    found.chunk(event({"content": "a"}, [1]))
    found.chunk(event({"content": "b"}, [2, 3, 4]))
    found.chunk(event({"content": ""}, [5]))
    assert found.doubtful_ids == 3
    assert found.window(0) == b"7,8,1,2,3,4"
    assert found.window(2) == b"7,8,1,2"
    assert found.cut(2) == b"7,8,1,2"
    assert (found.kept_tokens, found.doubtful_ids) == (2, 0)
    assert found.cut(0) == b"7,8,1,2", "the same for another replica"


def test_before_any_text_it_begins_with_the_prompt_alone() -> None:
    """Streams break in their first second as well."""
    found = begun()
    assert found.can_go_on
    assert found.cut(0) == b"7,8"


@pytest.mark.parametrize(
    ("delta", "ids", "obstacle"),
    [
        ({"content": "x"}, None, Obstacle.NO_IDS),
        ({"reasoning": "hm"}, [1], Obstacle.REASONING),
        ({"reasoning_content": "hm", "content": None}, [1], Obstacle.REASONING),
        ({"tool_calls": [{"index": 0}]}, [1], Obstacle.TOOL_CALL),
        ({"refusal": "no"}, [1], Obstacle.PARSED),
        ({}, [1], Obstacle.PARSED),
    ],
)
def test_what_a_parser_of_the_engine_made_cannot_be_gone_on_with(
    delta: dict[str, Any], ids: list[int] | None, obstacle: Obstacle
) -> None:
    """The next replica gives raw text: thoughts and calls would be read as the answer."""
    found = begun()
    found.chunk(event({"content": "a"}, [1]))
    found.chunk(event(delta, ids))
    assert not found.can_go_on
    assert found.standing is obstacle
    assert b'"token_ids":null' in found.chunk(event({"content": "b"}, [2])), "still taken out"


def test_a_chunk_that_is_only_there_for_its_ids_is_left_out() -> None:
    """Nobody who did not ask for ids gets one."""
    assert begun().chunk(event({}, [1])) == b""


def test_an_engine_that_tells_no_ids_is_not_continued() -> None:
    """Older ones ignore the question."""
    found = strand()
    found.chunk(event(ROLE))
    assert found.standing is Obstacle.NO_IDS


def test_what_is_remembered_of_one_stream_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand endless streams would fill the memory of the gateway."""
    found = begun()
    token = event({"content": "a"}, [123_456] * 1_000)
    for _ in range(IDS_BYTES_MAX // 7_000 + 1):
        found.chunk(token)
    assert found.standing is Obstacle.TOO_LONG
    assert len(found._ids) == 0
    assert begun().chunk(b"data: " + b"x" * (strand_module.HELD_BYTES_MAX + 1)) != b""


def test_an_engines_error_and_all_after_it_are_held_back() -> None:
    """The client would read an error in the middle of its answer."""
    found = begun()
    text = event({"content": "a"}, [1])
    error = b'data: {"error": {"message": "dead", "code": 500}}\n\n'
    assert found.chunk(text + error + DONE).endswith(b"}\n\n")
    assert found.is_broken
    assert found.chunk(text) == b""
    assert json.loads(found.error or b"")["error"]["message"] == "dead"


def test_done_without_a_reason_is_no_end() -> None:
    """An engine that died says so too."""
    found = begun()
    assert found.chunk(event({"content": "a"}, [1]) + DONE).count(b"\n\n") == 1
    assert found.is_broken
    assert found.can_go_on


def test_an_answer_with_its_reason_is_whole() -> None:
    """Asked for more, another replica would go on behind the end."""
    found = begun()
    found.chunk(event({"content": "a"}, [1], ends="stop"))
    assert not found.can_go_on
    assert found.standing is None
    usage = b'"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1}}\n\n'
    assert found.ending().endswith(b'"choices":[],' + usage + DONE)


def test_comments_pass_and_do_not_count() -> None:
    """A keep-alive is no token."""
    found = begun()
    assert found.chunk(b": keep-alive\n\n") == b": keep-alive\n\n"
    assert found.output_tokens == 0


def test_ids_that_may_differ_are_not_shown_twice() -> None:
    """A sampled token that was shown cannot be taken back."""
    found = begun(is_greedy=False, shows_ids=True)
    found.chunk(event({"content": "a"}, [1]))
    assert found.can_go_on
    found.chunk(event({"content": ""}, [2]))
    assert found.standing is Obstacle.SHOWN


def test_the_rest_looks_like_the_beginning() -> None:
    """A client would take a second id for a second answer."""
    heard, _ = played(CHAT, body(CHAT), [1_500])
    assert heard.comments == [": continued replica=0"]
    keys = {tuple(chunk) for chunk in heard.chunks if chunk["choices"]}
    unbroken, _ = played(CHAT, body(CHAT), [])
    assert keys == {tuple(chunk) for chunk in unbroken.chunks if chunk["choices"]}
    assert len(told(CHAT, body(CHAT))) > 1_500
