"""What counts as served in time: the figure by which operators are woken, and judged."""

import pytest

from gateway.core.messages import Usage
from gateway.core.policy import DEFAULT_TIERS
from gateway.telemetry.goodput import Targets, is_met, targets_of
from tests.unit.test_metrics import record

PROMISED = Targets(ttft_s=1.0, tpot_s=0.1)


def usage(output_tokens: int) -> Usage:
    """So much output."""
    return Usage(prompt_tokens=10, output_tokens=output_tokens, cached_tokens=0)


def test_targets_are_those_of_the_tier_in_seconds() -> None:
    """A target of 1,000 s would always be met."""
    by_name = {tier.name: targets_of(tier) for tier in DEFAULT_TIERS}
    assert (by_name["high"].ttft_s, by_name["high"].tpot_s) == (1.0, 0.1)
    assert by_name["background"].ttft_s == by_name["background"].tpot_s == float("inf")


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "met"),
    [(1.0, 0.1, True), (1.01, 0.1, False), (0.5, 0.11, False), (0.5, None, True)],
)
def test_a_stream_must_begin_in_time_and_keep_its_pace(
    ttft_s: float, tpot_s: float | None, met: bool
) -> None:
    """A reader notices either."""
    settled = record(streams=True, ttft_s=ttft_s, tpot_s=tpot_s, duration_s=900.0)
    assert is_met(settled, PROMISED) is met


@pytest.mark.parametrize(
    ("duration_s", "output_tokens", "met"),
    [(3.0, 20, True), (3.01, 20, False), (1.0, 0, True), (1.1, 0, False)],
)
def test_a_plain_answer_must_be_there_when_a_stream_would_have_ended(
    duration_s: float, output_tokens: int, met: bool
) -> None:
    """It shows no first token: held against that target, every long answer would be late."""
    settled = record(ttft_s=duration_s, duration_s=duration_s, usage=usage(output_tokens))
    assert is_met(settled, PROMISED) is met


def test_without_a_pace_only_the_wait_of_a_plain_answer_counts() -> None:
    """Nobody promised how long the answer takes."""
    slow = record(waited_s=0.9, duration_s=500.0, usage=usage(9))
    late = record(waited_s=1.1, duration_s=1.2, usage=usage(9))
    assert is_met(slow, Targets(ttft_s=1.0)) is True
    assert is_met(late, Targets(ttft_s=1.0)) is False
    assert is_met(record(duration_s=1e6, usage=None), Targets()) is True


@pytest.mark.parametrize(
    ("outcome", "status", "met"),
    [
        ("upstream_failed", 502, False),
        ("upstream_failed", 200, False),
        ("no_replica", 503, False),
        ("over_capacity", 429, False),
        ("patience_spent", 429, False),
        ("rate_limit_exceeded", 429, None),
        ("insufficient_quota", 429, None),
        ("invalid_request", 400, None),
        ("context_length_exceeded", 400, None),
    ],
)
def test_failures_count_where_they_are_not_the_clients(
    outcome: str, status: int, met: bool | None
) -> None:
    """A client with a typo in a loop must not wake anybody; an overfull queue must."""
    assert is_met(record(outcome=outcome, status=status), PROMISED) is met


def test_who_leaves_late_was_not_served_and_who_leaves_early_says_nothing() -> None:
    """Clients that give up on a stuck fleet would otherwise make it look well."""
    gone = {"outcome": "cancelled", "status": 0, "streams": True}
    assert is_met(record(**gone, ttft_s=None, duration_s=1.5), PROMISED) is False
    assert is_met(record(**gone, ttft_s=None, duration_s=0.5), PROMISED) is None
    assert is_met(record(**gone, ttft_s=0.5, duration_s=90.0), PROMISED) is None
