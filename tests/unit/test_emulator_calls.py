"""What the emulated engine takes and refuses; recorded errors are compared elsewhere."""

import json
from typing import Any

import pytest

from gateway.emulator.calls import Call, Card
from gateway.emulator.parsing import parse_chat, parse_completion, parse_tokenize
from gateway.emulator.refusals import Refusal
from gateway.emulator.vocabulary import Vocabulary

CARD = Card(models=("tiny", "adapter"), context_tokens=100, vocabulary=Vocabulary())
HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> Call:
    """A parsed chat."""
    return parse_chat(json.dumps({"messages": HELLO, **fields}).encode(), CARD)


def completion(**fields: Any) -> Call:
    """A parsed completion."""
    return parse_completion(json.dumps({"prompt": "hello", **fields}).encode(), CARD)


def refused(body: dict[str, Any]) -> tuple[int, str, str]:
    """(status, type, message) of the answer to a chat or completion."""
    parse = parse_chat if "messages" in body else parse_completion
    with pytest.raises(Refusal) as caught:
        parse(json.dumps(body).encode(), CARD)
    error = json.loads(caught.value.body)["error"]
    assert error["code"] == caught.value.status
    return caught.value.status, error["type"], error["message"]


def test_missing_model_means_the_base_and_adapters_have_their_own_name() -> None:
    """Clients of a one-model server leave the model out."""
    assert chat().model == "tiny"
    assert chat(model="").model == "tiny"
    assert chat(model="adapter").model == "adapter"


def test_numbers_and_truths_may_come_as_words() -> None:
    """The engine is lax; a stricter emulator would refuse what works in production."""
    call = completion(max_tokens="3", stream="yes", temperature="0.5", priority=True)
    assert (call.max_tokens, call.streams, call.temperature, call.priority) == (3, True, 0.5, 1)


def test_max_completion_tokens_wins_and_null_means_absent() -> None:
    """Newer clients send only the new name."""
    assert chat(max_completion_tokens=4, max_tokens=9).max_tokens == 4
    assert chat(max_tokens=None, n=None, temperature=None).max_tokens is None


def test_the_default_length_is_sixteen_for_completions_and_the_context_for_chat() -> None:
    """Service times of requests without max_tokens would be off by orders of magnitude."""
    call = completion()
    assert call.tokens_max(call.prompts[0], 100) == 16
    call = chat()
    assert call.tokens_max(call.prompts[0], 100) == 100 - len(call.prompts[0])


def test_an_answer_is_cut_to_the_room_its_prompt_leaves() -> None:
    """The engine does so without an error: 1010 tokens came where 1020 were asked for."""
    call = chat(max_tokens=100)
    assert call.tokens_max(call.prompts[0], 100) == 100 - len(call.prompts[0])


def test_prompts_come_in_four_forms() -> None:
    """Batches and token ids would be misread."""
    assert len(completion(prompt="a b").prompts) == 1
    assert len(completion(prompt=["a", "b c"]).prompts) == 2
    assert completion(prompt=[5, 6]).prompts == ((5, 6),)
    assert completion(prompt=[[5, 6], [7]]).prompts == ((5, 6), (7,))


def test_message_parts_are_joined() -> None:
    """Clients that send text as parts would be told another prompt length."""
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert chat(messages=[{"role": "user", "content": parts}]).prompts == chat().prompts


@pytest.mark.parametrize(
    ("body", "status", "type", "part"),
    [
        ({"messages": [], "max_tokens": 1}, 400, "BadRequestError", "empty conversation"),
        ({"prompt": [], "max_tokens": 1}, 400, "BadRequestError", "at least one prompt"),
        ({"prompt": 5}, 400, "Bad Request", "'loc': 'body.prompt'"),
        ({"prompt": "a", "n": 2, "temperature": 0}, 400, "BadRequestError", "greedy"),
        ({"prompt": "a", "n": 0}, 400, "BadRequestError", "n must be at least 1, got 0."),
        ({"prompt": "a", "top_p": 3}, 400, "BadRequestError", "top_p must be in (0, 1], got 3.0."),
        ({"prompt": "a", "priority": None}, 400, "Bad Request", "'int_type'"),
        ({"prompt": "a", "model": 5}, 400, "Bad Request", "'loc': 'body.model'"),
        ({"prompt": "a", "max_tokens": 1e400}, 400, "Bad Request", "'int_from_float'"),
        (
            {"prompt": "a", "stream": True, "stream_options": {"include_usage": "x"}},
            *(400, "Bad Request", "body.stream_options.include_usage"),
        ),
        ({"prompt": [5] * 100, "max_tokens": 1}, 400, "BadRequestError", "at least 1, got 0"),
        ({"prompt": [5] * 150, "max_tokens": 1}, 400, "BadRequestError", "contains 150 input"),
        ({"prompt": "a", "n": 2000}, 400, "BadRequestError", "1024 sequences"),
        ({"messages": ["hi"]}, 400, "Bad Request", "body.messages.0"),
        ({"messages": [{"content": "x"}]}, 400, "Bad Request", "body.messages.0.role"),
        (
            {"messages": HELLO, "continue_final_message": True},
            *(400, "BadRequestError", "not compatible"),
        ),
        ({"messages": HELLO, "model": "nope"}, 404, "NotFoundError", "`nope` does not exist"),
    ],
)
def test_what_cannot_be_is_refused_in_the_style_of_its_kind(
    body: dict[str, Any], status: int, type: str, part: str
) -> None:
    """A gateway's handling of engine errors would be tested against errors no engine sends."""
    assert (status, type) == refused(body)[:2]
    assert part in refused(body)[2]


def test_many_problems_are_counted_and_ten_are_shown() -> None:
    """One bad request must not be answered with megabytes."""
    _, _, message = refused({"messages": ["x"] * 30})
    assert message.startswith("30 validation errors:")
    assert message.endswith("...and 20 more errors")


def test_a_body_that_is_no_object_is_refused() -> None:
    """The parser would raise what the server cannot answer."""
    for body in (b"[1]", b"\xff\xfe", b"5", b"null"):
        with pytest.raises(Refusal) as caught:
            parse_chat(body, CARD)
        assert caught.value.status == 400


def test_tokenize_without_anything_misses_both_fields() -> None:
    """The error is what tells a probe that the route exists."""
    with pytest.raises(Refusal) as caught:
        parse_tokenize(b"{}", CARD)
    assert json.loads(caught.value.body)["error"]["message"].startswith("2 validation errors")
