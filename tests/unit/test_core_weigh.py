"""What a request is taken to need while it waits."""

import pytest

from gateway.core.fairqueue import class_of
from gateway.core.messages import Reason, Request
from gateway.core.policy import Tier
from gateway.core.predict import Predictor
from gateway.core.weigh import reweigh, weigh
from tests.support.script import Script, one_tier

TOKENS = one_tier(
    cost="tokens", tiers=(Tier(name="x", patience_s=30.0), Tier(name="y", patience_s=60.0))
)


def request(**fields: object) -> Request:
    """A request of ten prompt tokens with these fields."""
    given = {
        "id": "a",
        "model": "m",
        "tier": 0,
        "tenant": "t",
        "user": "u",
        "arrived_at": 5.0,
        "prompt_tokens": 10,
        "output_tokens_max": 20,
    }
    return Request(**{**given, **fields})  # type: ignore[arg-type]  # free keywords


def test_a_request_is_weighed_with_what_is_predicted() -> None:
    """Cost, KV and place follow from it."""
    waiting = weigh(TOKENS, Predictor(9), request(sequences=2), 7)
    assert waiting.cost == 10 + 2 * 2 * 20
    assert waiting.kv_tokens == 60
    assert waiting.order == (5.0, 7)
    assert waiting.deadline == 35.0


@pytest.mark.parametrize(("asked_s", "deadline"), [(None, 35.0), (8.0, 13.0), (99.0, 35.0)])
def test_patience_is_the_smaller_of_the_tiers_and_the_requests(
    asked_s: float | None, deadline: float
) -> None:
    """Who hangs up after eight seconds must not hold a place for thirty."""
    assert weigh(TOKENS, Predictor(9), request(patience_s=asked_s), 0).deadline == deadline


def test_no_patience_at_all_means_now_or_never() -> None:
    """A client with a fallback wants the refusal at once, not the tier's patience."""
    script = Script(TOKENS).replica("r", slots=1).arrive("a", patience_s=0.0).expect_granted("a")
    script.arrive_many("b", 1).arrive("c", patience_s=0.0).advance(0.0)
    script.expect_refused("c", reason=Reason.PATIENCE_SPENT)


def test_a_request_that_needs_no_tokens_can_be_weighed() -> None:
    """An empty embedding must not stop the scheduler."""
    script = Script(TOKENS).replica("r", slots=1)
    script.arrive("a", prompt_tokens=0, output_tokens_max=0).expect_granted("a").finish("a")


def test_classes_are_by_powers_of_four_and_by_what_restricts_the_replicas() -> None:
    """Too many classes cost time; too coarse ones hide what would fit."""
    sizes = [class_of(request(), kv_tokens).size for kv_tokens in (0, 1, 3, 4, 15, 16, 1 << 20)]
    assert sizes == [0, 0, 0, 1, 1, 2, 10]
    same = class_of(request(user="v", id="b"), 30)
    assert class_of(request(), 30) == same
    for change in ({"model": "x"}, {"sequences": 2}, {"excluded": frozenset({"r"})}):
        assert class_of(request(**change), 30) != same


def test_a_new_policy_prices_and_ranks_what_waits_anew() -> None:
    """Old prices against new ones would favour or lock out whoever waited."""
    waiting = weigh(TOKENS, Predictor(9), request(), 0)
    reweigh(waiting, one_tier(), {0: 1})
    assert waiting.cost == 1.0
    assert waiting.request.tier == 1
    assert waiting.deadline == 35.0
