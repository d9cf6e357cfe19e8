"""What a request is charged, before and after."""

from gateway.core import cost
from gateway.core.messages import Outcome, Usage
from gateway.core.policy import Policy, Tier

TOKENS = Policy(tiers=(Tier(name="only"),), cost="tokens")
REQUESTS = Policy(tiers=(Tier(name="only"),), cost="requests")
USAGE = Usage(prompt_tokens=100, output_tokens=50, cached_tokens=80)


def settled(policy: Policy, outcome: Outcome, prefilled: float = 1.0) -> float:
    """The final charge of one request that used `USAGE`."""
    return cost.settled(policy, outcome=outcome, sequences=2, usage=USAGE, prefilled=prefilled)


def test_tokens_are_charged_by_kind() -> None:
    """Output keeps the GPU busier than prompt, a cached prompt hardly at all."""
    assert cost.estimated(TOKENS, sequences=2, prompt_tokens=100, output_tokens=25) == 100 + 2 * 50
    assert settled(TOKENS, Outcome.DONE) == 20 + 0.1 * 80 + 2 * 50
    assert cost.produced(TOKENS, sequences=2, prompt_tokens=100, output_tokens=30) == 160


def test_requests_count_sequences() -> None:
    """n = 8 holds eight slots: it must not cost one turn."""
    assert cost.estimated(REQUESTS, sequences=8, prompt_tokens=1, output_tokens=1) == 8
    assert cost.produced(REQUESTS, sequences=8, prompt_tokens=1, output_tokens=900) == 8
    assert settled(REQUESTS, Outcome.DONE) == 2
    assert settled(REQUESTS, Outcome.CANCELLED, prefilled=0.0) == 2


def test_what_failed_through_no_fault_of_the_client_is_free() -> None:
    """Users of a broken replica would pay for nothing."""
    for policy in (TOKENS, REQUESTS):
        assert settled(policy, Outcome.FAILED) == 0.0
        assert settled(policy, Outcome.REJECTED) == 0.0


def test_a_cancelled_request_pays_for_the_work_it_caused() -> None:
    """Cancelling would otherwise be free prefill at everybody's cost."""
    assert settled(TOKENS, Outcome.CANCELLED) == settled(TOKENS, Outcome.DONE)
    assert settled(TOKENS, Outcome.CANCELLED, prefilled=0.5) == 0.5 * 28 + 100
    assert settled(TOKENS, Outcome.CANCELLED, prefilled=-1.0) == 100
    assert settled(TOKENS, Outcome.CANCELLED, prefilled=9.0) == 128


def test_more_cached_than_prompt_tokens_is_never_a_gift() -> None:
    """An engine that counts wrongly must not pay its users."""
    usage = Usage(prompt_tokens=10, cached_tokens=50)
    charged = cost.settled(TOKENS, outcome=Outcome.DONE, sequences=1, usage=usage)
    assert charged == 1.0
