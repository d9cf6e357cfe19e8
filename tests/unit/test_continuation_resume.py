"""The request for the rest of a stream: what of the client's own goes along."""

import json
from typing import Any

from gateway.continuation.resume import Rest, body_of


def rest(original: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The body for four more tokens after two."""
    told = Rest(
        **{
            "model": "m", "ids": b"1,2,3", "output_tokens": 2, "output_tokens_max": 4,
            "priority": None, **changes,
        }
    )  # fmt: skip
    found: dict[str, Any] = json.loads(body_of(told, json.dumps(original).encode()))
    return found


def test_sampling_goes_along_and_what_made_the_prompt_does_not() -> None:
    """The rest would be of another temper than the beginning, or begin with the system prompt."""
    sampling = {
        "temperature": 0.3, "top_p": 0.9, "logit_bias": {"5": 1}, "stop": "\n", "cache_salt": "s",
        "skip_special_tokens": False, "ignore_eos": True, "a_new_one": [1],
    }  # fmt: skip
    shaping = {
        "messages": [], "chat_template": "x", "documents": [], "truncate_prompt_tokens": 5,
        "add_generation_prompt": False, "max_completion_tokens": 99, "n": 1, "tools": [],
        "response_format": {"type": "text"}, "logprobs": False, "service_tier": "auto",
        "priority": 3, "seed": 4, "presence_penalty": 0,
    }  # fmt: skip
    assert rest({"model": "alias", **sampling, **shaping}) == {
        "model": "m",
        "prompt": [1, 2, 3],
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **sampling,
    }


def test_the_rest_is_salted_like_the_beginning() -> None:
    """It would be computed in the cache of all others, and by the client's own word."""
    assert rest({"cache_salt": "theirs"}, cache_salt="ours")["cache_salt"] == "ours"
    assert rest({}, cache_salt="ours")["cache_salt"] == "ours"


def test_what_must_still_come_is_less_by_what_came() -> None:
    """An answer would be longer by its break."""
    assert rest({"min_tokens": 5})["min_tokens"] == 3
    assert "min_tokens" not in rest({"min_tokens": 2})
    assert "min_tokens" not in rest({"min_tokens": None})


def test_an_engine_that_knows_priorities_is_told_the_tiers() -> None:
    """The rest of an urgent answer would wait behind everything."""
    assert rest({"priority": 9}, priority=0)["priority"] == 0


def test_usage_is_told_as_it_was_and_always_at_the_end() -> None:
    """Counts would come in every event, or in none."""
    both = {"include_usage": True, "continuous_usage_stats": True}
    assert rest({"stream_options": both})["stream_options"] == both
    alone = {"continuous_usage_stats": True}
    assert rest({"stream_options": alone})["stream_options"] == {"include_usage": True}
    assert rest({"stream_options": None})["stream_options"] == {"include_usage": True}
