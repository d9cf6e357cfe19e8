"""The paper's workload and step times: the draws of Vidur, and where the authors' table ends."""

import math
import statistics
from collections import Counter
from itertools import pairwise

import pytest

from gateway.sim.paper.request import Request
from gateway.sim.paper.steps import StepTime
from gateway.sim.paper.tables import ROWS
from gateway.sim.paper.workload import (
    TOKENS_MAX,
    TOKENS_MIN,
    Mix,
    draw_requests,
    numpy_twister,
    tier_shares,
    total_tokens_drawer,
)


def zipf_share(up_to: int, *, of: int, theta: float) -> float:
    """Probability of a rank of at most so much under Zipf's law itself, without approximation."""
    weights = [1 / float(rank) ** theta for rank in range(1, of + 1)]
    return math.fsum(weights[:up_to]) / math.fsum(weights)


def decode(kv_tokens: int = 100) -> Request:
    """A request that has its first token."""
    request = Request(0, 0.0, 0, prompt_tokens=kv_tokens - 1, output_tokens=50)
    request.advance(0.0)
    return request


def test_lengths_follow_zipfs_law_between_their_bounds() -> None:
    """The load, and with it every speed-up, hangs on how many requests are long."""
    draw = total_tokens_drawer(7)
    totals = [draw() for _ in range(20_000)]
    assert min(totals) == TOKENS_MIN
    assert TOKENS_MAX - 5 < max(totals) <= TOKENS_MAX + 1
    for tokens in (64, 65, 80, 128, 256, 384):
        ranks = tokens - TOKENS_MIN + 1
        expected = zipf_share(ranks, of=TOKENS_MAX - TOKENS_MIN + 1, theta=1.2)
        share = sum(total <= tokens for total in totals) / len(totals)
        # The inverse that Vidur draws by is an approximation: 3 points too few up to 80.
        assert share == pytest.approx(expected, abs=0.04), tokens


def test_two_thirds_of_a_length_are_the_prompt() -> None:
    """A token more or less of prompt is a block more or less of 128."""
    requests = draw_requests("uniform", tiers=3, count=2_000, seed=1)
    draw = total_tokens_drawer(1)
    for request in requests:
        total = draw()
        assert request.prefill_tokens == pytest.approx(2 * total / 3, abs=1)
        assert request.prefill_tokens <= 2 * total / 3 + 1e-9
        assert request.total_tokens - request.prefill_tokens == total // 3


def test_gaps_are_those_of_a_poisson_process_cut_at_three_means() -> None:
    """Vidur's cut makes the true rate 5 % higher; the 60 s end comes sooner for it."""
    requests = draw_requests("uniform", tiers=3, count=20_000, seed=1)
    gaps = [after.arrived_at - before.arrived_at for before, after in pairwise(requests)]
    assert max(gaps) == pytest.approx(3 / 1250)
    assert statistics.fmean(gaps) == pytest.approx(0.9502 / 1250, rel=0.02)


@pytest.mark.parametrize(
    ("mix", "tiers", "shares"),
    [
        ("uniform", 4, [0.25, 0.25, 0.25, 0.25]),
        ("gaussian", 3, [0.2256, 0.5488, 0.2256]),
        ("enterprise", 2, [0.25, 0.75]),
        ("enterprise", 4, [0.10, 0.35, 0.35, 0.20]),
        ("enterprise", 1, [1.0]),
    ],
)
def test_tiers_are_drawn_by_their_shares(mix: Mix, tiers: int, shares: list[float]) -> None:
    """A tier with too many requests changes which one waits for the end."""
    assert tier_shares(mix, tiers) == pytest.approx(shares, abs=1e-4)
    drawn = Counter(
        request.tier for request in draw_requests(mix, tiers=tiers, count=10_000, seed=3)
    )
    for tier, share in enumerate(shares):
        assert drawn[tier] / 10_000 == pytest.approx(share, abs=0.02)


def test_a_seed_means_what_it_means_to_numpy() -> None:
    """Else the paper's seed would draw other lengths than the paper's."""
    twister = numpy_twister(42)
    # numpy.random.RandomState(42).random_sample(3)
    assert [twister.random() for _ in range(3)] == pytest.approx(
        [0.3745401188473625, 0.9507143064099162, 0.7319939418114051], abs=0
    )


def test_the_decodes_of_a_step_cost_their_kv_up_to_the_thirty_second() -> None:
    """The end of the authors' table is a fifth of their speed-up; the ablation goes beyond it."""
    authors, honest = StepTime(), StepTime(sequences_charged_max=None)
    few, many = [decode()] * 32, [decode()] * 320
    assert authors.step_s(few) == honest.step_s(few)
    linear_s = authors.step_s(many) - authors.step_s(few)
    whole_s = honest.step_s(many) - honest.step_s(few)
    # 288 more, each with 128 tokens of KV at 0.322 us, and 0.1 us in each of 32 layers.
    assert whole_s - linear_s == pytest.approx(288 * (128 * 0.322 + 3.2) / 1e6, rel=1e-6)


def test_a_prefill_of_a_full_batch_takes_a_seventh_of_a_second() -> None:
    """Step times are the currency of all the tables: Vidur's medians say 133 ms for 2,048."""
    prompts = [Request(n, 0.0, 0, prompt_tokens=128, output_tokens=1) for n in range(16)]
    assert StepTime().step_s(prompts) == pytest.approx(0.1335, rel=0.01)


def test_cost_per_latency_is_nothing_but_the_tail_again() -> None:
    """Who quotes the column must know that it says nothing new; one row is printed swapped."""
    off = [
        (row.mix, row.requests, row.tiers)
        for row in ROWS
        if abs(1 - 1 / row.printed.e2e_p99 - row.cost_share) > 0.02
    ]
    assert len(ROWS) == 18
    assert off == [("gaussian", 15_000, 5)]
    (swapped,) = [row for row in ROWS if (row.mix, row.requests, row.tiers) == off[0]]
    assert 1 - 1 / swapped.printed.e2e_mean == pytest.approx(swapped.cost_share, abs=0.02)
