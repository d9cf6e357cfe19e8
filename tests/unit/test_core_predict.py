"""What is expected of a request before anybody knows."""

import pytest

from gateway.core.messages import Request, Usage
from gateway.core.predict import OUTPUT_TOKENS_UNSEEN, Predictor


def request(**fields: object) -> Request:
    """A request of one user, with these fields."""
    given = {"id": "a", "model": "m", "tier": 0, "tenant": "t", "user": "u", "arrived_at": 0.0}
    return Request(**{**given, **fields})  # type: ignore[arg-type]  # free keywords


def test_a_known_prompt_length_is_believed() -> None:
    """Completions with token ids know theirs exactly."""
    assert Predictor(10).prompt_tokens(request(prompt_tokens=7, body_bytes=4_000)) == 7


def test_prompt_tokens_follow_from_bytes_by_a_ratio_that_is_learnt() -> None:
    """Chinese text has far fewer bytes a token than the start value says."""
    predictor = Predictor(10)
    assert predictor.prompt_tokens(request(body_bytes=4_000)) == 1_000
    for _ in range(30):
        predictor.learn(request(body_bytes=4_000), Usage(prompt_tokens=2_000, output_tokens=1))
    assert predictor.prompt_tokens(request(body_bytes=4_000)) == pytest.approx(2_000, rel=0.01)
    assert predictor.prompt_tokens(request(model="other", body_bytes=4_000)) == 1_000
    assert predictor.prompt_tokens(request(body_bytes=0)) == 1


def test_tiny_prompts_teach_nothing_about_the_ratio() -> None:
    """Their body is mostly JSON: everybody else's estimate would be off."""
    predictor = Predictor(10)
    predictor.learn(request(body_bytes=400), Usage(prompt_tokens=3))
    assert predictor.prompt_tokens(request(body_bytes=4_000)) == 1_000


def test_output_is_learnt_by_user_and_never_above_the_requests_own_limit() -> None:
    """A user of short answers must not be charged for an average of long ones."""
    predictor = Predictor(10)
    assert predictor.output_tokens(request()) == OUTPUT_TOKENS_UNSEEN
    assert predictor.output_tokens(request(output_tokens_max=16)) == 16
    for _ in range(30):
        predictor.learn(request(), Usage(output_tokens=40))
    assert predictor.output_tokens(request()) == 40
    assert predictor.output_tokens(request(output_tokens_max=16)) == 16
    assert predictor.output_tokens(request(user="v")) == OUTPUT_TOKENS_UNSEEN


def test_output_is_learnt_for_one_sequence() -> None:
    """Who asks for n = 4 once must not be charged fourfold afterwards."""
    predictor = Predictor(10)
    predictor.learn(request(sequences=4), Usage(output_tokens=400))
    assert predictor.output_tokens(request()) == 100


def test_embeddings_decode_nothing_and_teach_nothing() -> None:
    """They would drag the prediction of the same user's chats to zero."""
    predictor = Predictor(10)
    predictor.learn(request(output_tokens_max=0), Usage(prompt_tokens=100))
    assert predictor.output_tokens(request(output_tokens_max=0)) == 0
    assert predictor.output_tokens(request()) == OUTPUT_TOKENS_UNSEEN


def test_no_more_histories_are_kept_than_allowed() -> None:
    """A client that invents user names must not fill the memory."""
    predictor = Predictor(entries_max=5)
    for number in range(50):
        predictor.learn(request(user=f"u{number}"), Usage(output_tokens=number + 1))
    assert len(predictor._output) == 5
    assert predictor.output_tokens(request(user="u49")) == 50
    assert predictor.output_tokens(request(user="u0")) == OUTPUT_TOKENS_UNSEEN
