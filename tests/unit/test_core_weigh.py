"""What a request is taken to need while it waits."""

from dataclasses import replace

import pytest

from gateway.core.flows import Waiting
from gateway.core.messages import Reason, Request
from gateway.core.policy import Policy, Tier
from gateway.core.pool import Pool
from gateway.core.predict import Predictor
from gateway.core.replica import Replica
from gateway.core.speed import STEP_S
from gateway.core.weigh import SHORTEST_OVERTAKES_TOKENS_PER_S, reweigh, weigh
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


def weighed(policy: Policy = TOKENS, *, sequence: int = 0, **fields: object) -> Waiting:
    """A request with these fields, weighed where one replica serves its model."""
    replica = Replica("r", tiers=len(policy.tiers), blocks=8)
    replica.models = frozenset({"m"})
    pool = Pool(policy, ("m",), [replica])
    return weigh(pool, Predictor(9), request(**fields), sequence=sequence)


def test_a_request_is_weighed_with_what_is_predicted() -> None:
    """Cost, KV and place follow from it."""
    waiting = weighed(sequences=2, sequence=7)
    assert waiting.cost == 10 + 2 * 2 * 20
    assert waiting.kv_tokens == 60
    assert (waiting.prompt_tokens, waiting.output_tokens) == (10, 20)
    assert waiting.order == (5.0, 7)
    assert waiting.deadline == 35.0
    assert waiting.kind.replicas == {"r"}
    assert waiting.kind.sequences == 2
    assert waiting.ticket == 0


def test_what_nobody_knows_is_estimated() -> None:
    """A client that sets no max_tokens and whose prompt was not counted must be charged too."""
    waiting = weighed(prompt_tokens=None, body_bytes=4_000, output_tokens_max=None)
    assert waiting.prompt_tokens == 1_000
    assert waiting.output_tokens == 256
    assert waiting.cost == 1_000 + 2 * 256


@pytest.mark.parametrize(("asked_s", "deadline"), [(None, 35.0), (8.0, 13.0), (99.0, 35.0)])
def test_patience_is_the_smaller_of_the_tiers_and_the_requests(
    asked_s: float | None, deadline: float
) -> None:
    """Who hangs up after eight seconds must not hold a place for thirty."""
    assert weighed(patience_s=asked_s).deadline == deadline


def test_each_tier_has_its_own_patience() -> None:
    """Background work is not refused after the half minute of an interactive request."""
    assert weighed(tier=1).deadline == 65.0


def test_no_patience_at_all_means_now_or_never() -> None:
    """A client with a fallback wants the refusal at once, not the tier's patience."""
    script = Script(TOKENS).replica("r", slots=1).arrive("a", patience_s=0.0).expect_granted("a")
    script.arrive_many("b", 1).arrive("c", patience_s=0.0).advance(0.0)
    script.expect_refused("c", reason=Reason.PATIENCE_SPENT)


def test_a_plain_client_that_will_hang_up_must_be_served_before() -> None:
    """Work for a client that has read its time-out already is work for nobody."""
    service_s = 10 / 8_000 + 20 * STEP_S
    assert weighed(read_timeout_s=10.0).deadline == pytest.approx(15.0 - service_s)
    assert weighed(read_timeout_s=100.0).deadline == 35.0
    # It cannot be served in time, but may be now: it is not older than its own arrival.
    assert weighed(read_timeout_s=0.1).deadline == 5.0


def test_a_stream_that_hears_comments_waits_on_whatever_its_read_timeout() -> None:
    """A client that is told its place does not hang up."""
    assert weighed(read_timeout_s=1.0, streams=True).deadline == 35.0


def test_the_rest_of_a_broken_stream_waits_as_long_as_is_said_for_those() -> None:
    """Its client reads half an answer: neither its tier's patience nor its own header counts."""
    policy = replace(TOKENS, continuation_wait_s=12.0)
    assert weighed(policy, is_continuation=True).deadline == 17.0
    long = replace(TOKENS, continuation_wait_s=50.0)
    assert weighed(long, is_continuation=True).deadline == 55.0
    assert weighed(policy, is_continuation=True, patience_s=1.0).deadline == 17.0


def test_the_rest_of_a_broken_stream_is_charged_for_its_output_only() -> None:
    """Its prompt was paid for when it began; the KV it needs is the whole all the same."""
    waiting = weighed(is_continuation=True)
    assert waiting.cost == 40
    assert waiting.kv_tokens == 30


def test_a_request_that_needs_no_tokens_can_be_weighed() -> None:
    """An empty embedding must not stop the scheduler."""
    script = Script(TOKENS).replica("r", slots=1)
    script.arrive("a", prompt_tokens=0, output_tokens_max=0).expect_granted("a").finish("a")
    nothing = weighed(prompt_tokens=0, output_tokens_max=0)
    assert (nothing.cost, nothing.kv_tokens, nothing.kind.decodes) == (0.0, 0, False)


# --- the order inside a user ------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fcfs", "prefix"])
def test_by_default_a_users_requests_stand_by_their_arrival(order: str) -> None:
    """A retry must not lose its place, nor a long prompt cost it."""
    policy = replace(TOKENS, within_user=order)  # type: ignore[arg-type]  # parametrised
    assert weighed(policy, prompt_tokens=9_000, ttft_target_s=1.0).key == 5.0


def test_shortest_first_counts_predicted_tokens_of_all_sequences_and_ages() -> None:
    """The long request is overtaken for a time in proportion to its length, not for ever."""
    policy = replace(TOKENS, within_user="shortest")
    assert weighed(policy).key == 5.0 + 30 / SHORTEST_OVERTAKES_TOKENS_PER_S
    assert weighed(policy, sequences=3).key == 5.0 + 70 / SHORTEST_OVERTAKES_TOKENS_PER_S
    long = weighed(policy, prompt_tokens=1_000).key
    assert weighed(policy, arrived_at=14.0).key < long < weighed(policy, arrived_at=16.0).key


def test_shortest_first_lets_the_short_request_of_a_user_go_first() -> None:
    """The user whose question waits behind its own batch of summaries."""
    script = Script(one_tier(within_user="shortest")).replica("r", slots=1).arrive("held")
    script.arrive("long", prompt_tokens=50_000, output_tokens_max=10)
    script.arrive("short", prompt_tokens=10, output_tokens_max=10).finish("held")
    script.expect_granted("short").expect_waiting("long")


@pytest.mark.parametrize(
    ("target_ms", "fields", "key"),
    [
        (2_000.0, {}, 7.0),
        (2_000.0, {"ttft_target_s": 1.0}, 6.0),
        (None, {"ttft_target_s": 3.0}, 8.0),
        (None, {}, 35.0),
        (None, {"patience_s": 4.0}, 9.0),
        (2_000.0, {"patience_s": 1.0}, 6.0),
        (90_000.0, {}, 35.0),
    ],
)
def test_deadline_first_goes_by_the_target_of_the_request_else_of_its_tier(
    target_ms: float | None, fields: dict[str, object], key: float
) -> None:
    """Who was promised an answer within a second, beside one who has half a minute."""
    tier = Tier(name="x", patience_s=30.0, ttft_target_ms=target_ms)
    policy = replace(TOKENS, within_user="deadline", tiers=(tier,))
    assert weighed(policy, **fields).key == key  # type: ignore[arg-type]  # free keywords


# --- a new policy -----------------------------------------------------------------------------


def test_a_new_policy_prices_and_ranks_what_waits_anew() -> None:
    """Old prices against new ones would favour or lock out whoever waited."""
    waiting = weighed(ttft_target_s=1.0)
    request_before = waiting.request
    reweigh(waiting, one_tier(within_user="deadline"), {0: 0})
    assert waiting.cost == 1.0
    assert waiting.key == 6.0
    assert waiting.request is request_before


def test_a_request_that_is_moved_to_another_tier_keeps_the_patience_it_was_told() -> None:
    """It was promised half a minute when it came."""
    waiting = weighed()
    two = replace(TOKENS, tiers=(Tier(name="a", patience_s=1.0), Tier(name="b", patience_s=1.0)))
    reweigh(waiting, two, {0: 1})
    assert waiting.request.tier == 1
    assert waiting.deadline == 35.0
