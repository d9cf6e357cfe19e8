"""Which requests may be continued, and the words for those that may not."""

import json
from typing import Any

import pytest

from gateway.continuation.eligible import judged
from gateway.continuation.obstacles import Obstacle

TURNS = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def obstacle_of(sequences: int = 1, **fields: Any) -> Obstacle | None:
    """Of a chat with these fields."""
    body = {"model": "m", "messages": TURNS, "stream": True, **fields}
    return judged(json.dumps(body).encode(), sequences=sequences).obstacle


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0, "seed": 5},
        {"temperature": 0.0, "max_tokens": 5, "min_tokens": 2, "ignore_eos": True},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.1},
        {"stop": "\n"},
        {"stop": ["\n", "\u5317"], "stop_token_ids": [5]},
        {"stop": None, "seed": None, "n": 1, "best_of": 1, "tools": [], "tool_choice": "none"},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "echo": False},
        {"response_format": {"type": "text"}, "logit_bias": {"5": 1}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 'say "image_url"'}]}]},
        {"prompt": [1, 2, 3], "cache_salt": "x", "some_new_field": 7},
        {"return_token_ids": True},
    ],
)
def test_what_depends_on_nothing_but_ids_may_be_continued(fields: dict[str, Any]) -> None:
    """Whoever switches it on would wonder why nothing is ever continued."""
    assert obstacle_of(**fields) is None


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({"sequences": 2}, Obstacle.SEVERAL),
        ({"best_of": 3}, Obstacle.SEVERAL),
        ({"use_beam_search": True}, Obstacle.BEAMS),
        ({"echo": True}, Obstacle.ECHO),
        ({"suffix": "x"}, Obstacle.PROMPT),
        ({"tools": [{"type": "function"}]}, Obstacle.TOOLS),
        ({"tool_choice": "auto"}, Obstacle.TOOLS),
        ({"functions": [{"name": "f"}]}, Obstacle.TOOLS),
        ({"response_format": {"type": "json_object"}}, Obstacle.FORMAT),
        ({"response_format": 7}, Obstacle.FORMAT),
        ({"structured_outputs": {"regex": "x"}}, Obstacle.FORMAT),
        ({"guided_choice": ["a"]}, Obstacle.FORMAT),
        ({"logprobs": True}, Obstacle.LOGPROBS),
        ({"logprobs": 0}, Obstacle.LOGPROBS),
        ({"top_logprobs": 2}, Obstacle.LOGPROBS),
        ({"presence_penalty": -1}, Obstacle.PENALTY),
        ({"frequency_penalty": 0.1}, Obstacle.PENALTY),
        ({"bad_words": ["x"]}, Obstacle.HISTORY),
        ({"repetition_detection": {"n": 3}}, Obstacle.HISTORY),
        ({"vllm_xargs": {"x": 1}}, Obstacle.HISTORY),
        ({"seed": 1}, Obstacle.SEED),
        ({"seed": 0, "temperature": 0.5}, Obstacle.SEED),
        ({"stop": "ab"}, Obstacle.STOP),
        ({"stop": ["a", "bc"]}, Obstacle.STOP),
        ({"stop": [7]}, Obstacle.STOP),
        ({"return_token_ids": False}, Obstacle.DECLINED),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, Obstacle.PROMPT),
        ({"messages": [{"content": [{"type": "input_audio", "input_audio": {}}]}]},
         Obstacle.PROMPT),
    ],
)  # fmt: skip
def test_what_looks_at_the_output_or_holds_other_state_may_not(
    fields: dict[str, Any], obstacle: Obstacle
) -> None:
    """Its reader would get another answer from the break on, and not know it."""
    assert obstacle_of(**fields) is obstacle


def test_the_verdict_says_what_a_strand_must_know() -> None:
    """Ids that were shown may only come again where they are sure to be the same."""
    greedy = judged(b'{"temperature": 0, "return_token_ids": true}', sequences=1)
    assert (greedy.is_greedy, greedy.shows_ids) == (True, True)
    other = judged(b'{"temperature": 0.1}', sequences=1)
    assert (other.is_greedy, other.shows_ids) == (False, False)


def test_every_obstacle_completes_a_sentence() -> None:
    """It is read by whoever lost an answer."""
    for obstacle in Obstacle:
        assert not obstacle.value.endswith(".")
        assert obstacle.value[0].islower()
    assert len({each.value for each in Obstacle}) == len(Obstacle)
