"""What a request is charged, before and after."""

from dataclasses import replace

import pytest

from gateway.core import cost
from gateway.core.messages import Outcome, Request, Usage
from gateway.core.policy import CostWeights, GpuTime, Policy, Price, Tier

TOKENS = Policy(tiers=(Tier(name="only"),), cost="tokens")
REQUESTS = replace(TOKENS, cost="requests")
SECONDS = replace(
    TOKENS, cost="gpu_seconds", gpu_time=GpuTime(prompt_s=1.0, output_s=8.0, kv_s=0.5)
)
PRICE = replace(TOKENS, cost="price", prices={"m": Price(input=3e6, output=5e6)})
USAGE = Usage(prompt_tokens=100, output_tokens=50, cached_tokens=80)
REQUEST = Request(
    id="a", model="m", tier=0, tenant="t", user="u", arrived_at=0.0, sequences=2
)  # fmt: skip
CONTINUATION = replace(REQUEST, is_continuation=True)


def settled(policy: Policy, outcome: Outcome, prefilled: float = 1.0) -> float:
    """The final charge of one request of two sequences that used `USAGE`."""
    return cost.settled(policy, REQUEST, outcome, usage=USAGE, prefilled=prefilled)


def test_tokens_are_charged_by_kind() -> None:
    """Output keeps the GPU busier than prompt, a cached prompt hardly at all."""
    assert cost.estimated(TOKENS, REQUEST, 100, 25) == 100 + 2 * 50
    assert settled(TOKENS, Outcome.DONE) == 20 + 0.1 * 80 + 2 * 50
    assert cost.produced(TOKENS, REQUEST, 100, 30) == 160


def test_prices_are_for_the_cost_that_is_called_so() -> None:
    """An operator may list what a token costs and share by tokens all the same."""
    policy = replace(TOKENS, prices=PRICE.prices)
    assert settled(policy, Outcome.DONE) == settled(TOKENS, Outcome.DONE)


def test_the_operators_weights_are_used() -> None:
    """A provider whose prompts are dear must not charge as VTC does."""
    policy = replace(TOKENS, weights=CostWeights(prompt=3.0, output=5.0, cached=0.5))
    assert cost.estimated(policy, REQUEST, 10, 10) == 3 * 10 + 5 * 20
    assert settled(policy, Outcome.DONE) == 3 * 20 + 0.5 * 80 + 5 * 50


def test_requests_count_sequences() -> None:
    """n = 8 holds eight slots: it must not cost one turn."""
    eight = replace(REQUEST, sequences=8)
    assert cost.estimated(REQUESTS, eight, 1, 1) == 8
    assert cost.produced(REQUESTS, eight, 1, 900) == 8
    assert settled(REQUESTS, Outcome.DONE) == 2
    assert settled(REQUESTS, Outcome.CANCELLED, prefilled=0.0) == 2


def test_gpu_seconds_follow_the_prompt_the_output_and_the_context_it_reads() -> None:
    """The user of short contexts next to one whose every token reads a book."""
    # Each sequence of 25 tokens attends to the prompt and to half of its own output.
    assert cost.estimated(SECONDS, REQUEST, 100, 25) == 100 + 50 * (8 + 0.5 * (100 + 12.5))
    assert settled(SECONDS, Outcome.DONE) == 20 + 0.1 * 80 + 50 * (8 + 0.5 * (100 + 12.5))
    alone = replace(REQUEST, sequences=1)
    assert cost.produced(SECONDS, alone, 100, 50) == 100 + 50 * (8 + 0.5 * (100 + 25))
    assert cost.estimated(SECONDS, REQUEST, 100, 0) == 100


def test_a_price_is_by_model_and_by_million_tokens() -> None:
    """Finance: the sum of the charges is what the tokens are sold for."""
    assert cost.estimated(PRICE, REQUEST, 100, 25) == pytest.approx(3 * 100 + 5 * 50, rel=1e-9)
    assert settled(PRICE, Outcome.DONE) == pytest.approx(3 * (20 + 0.1 * 80) + 5 * 50, rel=1e-9)


def test_a_model_without_a_price_is_charged_by_the_weights() -> None:
    """A model that was forgotten in the list must not be free."""
    other = replace(REQUEST, model="x")
    assert cost.estimated(PRICE, other, 100, 25) == cost.estimated(TOKENS, REQUEST, 100, 25)
    charged = cost.settled(PRICE, other, Outcome.DONE, usage=USAGE)
    assert charged == settled(TOKENS, Outcome.DONE)


@pytest.mark.parametrize("policy", [SECONDS, PRICE])
def test_cached_tokens_are_cheap_in_proportion_to_the_weights(policy: Policy) -> None:
    """A prompt weight of 0 makes prompts free by weight: there is no proportion to divide by."""
    free = replace(policy, weights=CostWeights(prompt=0.0, output=1.0, cached=0.1))
    usage = Usage(prompt_tokens=80, cached_tokens=80)
    assert cost.settled(free, REQUEST, Outcome.DONE, usage=usage) == 0.0
    half = replace(policy, weights=CostWeights(prompt=4.0, output=1.0, cached=2.0))
    whole = Usage(prompt_tokens=40)
    assert cost.settled(half, REQUEST, Outcome.DONE, usage=usage) == pytest.approx(
        cost.settled(half, REQUEST, Outcome.DONE, usage=whole)
    )


@pytest.mark.parametrize("policy", [TOKENS, REQUESTS, SECONDS, PRICE])
def test_what_failed_through_no_fault_of_the_client_is_free(policy: Policy) -> None:
    """Users of a broken replica would pay for nothing."""
    assert settled(policy, Outcome.FAILED) == 0.0
    assert settled(policy, Outcome.REJECTED) == 0.0


def test_a_cancelled_request_pays_for_the_work_it_caused() -> None:
    """Cancelling would otherwise be free prefill at everybody's cost."""
    assert settled(TOKENS, Outcome.CANCELLED) == settled(TOKENS, Outcome.DONE)
    assert settled(TOKENS, Outcome.CANCELLED, prefilled=0.5) == 0.5 * 28 + 100
    assert settled(TOKENS, Outcome.CANCELLED, prefilled=-1.0) == 100
    assert settled(TOKENS, Outcome.CANCELLED, prefilled=9.0) == settled(TOKENS, Outcome.DONE)
    assert settled(TOKENS, Outcome.DONE, prefilled=0.5) == settled(TOKENS, Outcome.DONE)


def test_the_rest_of_a_broken_stream_pays_no_prompt() -> None:
    """Its user paid for the prompt when the stream began, and did not break the replica."""
    assert cost.estimated(TOKENS, CONTINUATION, 100, 25) == 100
    assert cost.produced(TOKENS, CONTINUATION, 100, 30) == 60
    for outcome in (Outcome.DONE, Outcome.CANCELLED):
        assert cost.settled(TOKENS, CONTINUATION, outcome, usage=USAGE) == 100
    assert cost.settled(TOKENS, CONTINUATION, Outcome.FAILED, usage=USAGE) == 0.0


def test_more_cached_than_prompt_tokens_is_never_a_gift() -> None:
    """An engine that counts wrongly must not pay its users."""
    usage = Usage(prompt_tokens=10, cached_tokens=50)
    assert cost.settled(TOKENS, REQUEST, Outcome.DONE, usage=usage) == 1.0


def test_the_rest_of_a_stream_is_no_further_request() -> None:
    """Where requests are counted, whose replica fails would pay its request twice."""
    rest = replace(CONTINUATION, sequences=1)
    assert cost.settled(REQUESTS, rest, Outcome.DONE, usage=USAGE) == 0.0
    assert cost.settled(REQUESTS, rest, Outcome.CANCELLED, usage=USAGE) == 0.0
    assert cost.settled(TOKENS, rest, Outcome.DONE, usage=USAGE) == 2 * 50
