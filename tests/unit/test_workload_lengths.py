"""Laws of lengths: what they promise about their draws, at fixed seeds."""

from collections import Counter
from random import Random
from statistics import median

import pytest

from gateway.sim.workload.knobs import length_law
from gateway.sim.workload.lengths import Empirical, Fixed, Lengths, Lognormal, Zipf

DRAWS = 20_000


def drawn(law: Lengths, seed: int = 7) -> list[tuple[int, int]]:
    """Many pairs of that law."""
    dice = Random(seed)
    return [law.draw(dice) for _ in range(DRAWS)]


def test_a_zipf_total_is_split_two_to_one() -> None:
    """The paper's tables are of such requests; a token more or less moves their capacity."""
    pairs = drawn(Zipf())
    totals = {(2 * total // 3, total // 3) for total in range(64, 513)}
    assert set(pairs) <= totals
    assert min(pairs) == (42, 21)


def test_zipf_ranks_come_as_the_law_says() -> None:
    """A tail too thin would make every queue look short."""
    law = Zipf(1.2, 64, 512)
    weights = [(rank + 1) ** -1.2 for rank in range(449)]
    seen = Counter(drawn(law))
    for total in (64, 65, 68, 71):
        expected = weights[total - 64] / sum(weights)
        assert seen[2 * total // 3, total // 3] / DRAWS == pytest.approx(expected, rel=0.12)
    long = sum(count for (prompt, _), count in seen.items() if prompt >= 2 * 300 // 3)
    assert long / DRAWS == pytest.approx(sum(weights[300 - 64 :]) / sum(weights), rel=0.08)


def test_a_fixed_law_leaves_the_dice_alone() -> None:
    """Who compares it with another law wants everything else drawn the same."""
    dice = Random(7)
    before = dice.getstate()
    assert Fixed(10, 20).draw(dice) == (10, 20)
    assert dice.getstate() == before


def test_a_lognormal_has_its_medians_and_is_cut() -> None:
    """A prompt longer than any engine holds would be refused instead of served."""
    law = Lognormal(prompt_median=300, output_median=50, prompt_tokens_max=900)
    pairs = drawn(law)
    assert median(prompt for prompt, _ in pairs) == pytest.approx(300, rel=0.04)
    assert median(output for _, output in pairs) == pytest.approx(50, rel=0.04)
    assert max(prompt for prompt, _ in pairs) == 900
    assert min(min(pair) for pair in drawn(Lognormal(prompt_median=0.1, output_median=0.1))) == 1


def test_an_empirical_law_keeps_prompts_and_answers_together() -> None:
    """Long prompts with short answers are what makes code completion what it is."""
    pairs = ((5, 50), (70, 7), (9, 90))
    seen = Counter(drawn(Empirical(pairs)))
    assert seen.keys() == set(pairs)
    assert min(seen.values()) > DRAWS / 3.3


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(0, 1),
        lambda: Zipf(1.2, 2, 5),
        lambda: Zipf(1.2, 9, 5),
        lambda: Zipf(1.2, 3, 2_000_000),
        lambda: Lognormal(prompt_median=0),
        lambda: Lognormal(output_sigma=-1),
        lambda: Lognormal(output_tokens_max=0),
        lambda: Empirical(()),
        lambda: Empirical(((1, 0),)),
    ],
)
def test_a_law_without_lengths_is_refused(make: object) -> None:
    """An engine takes no empty prompt: the run would stop in its middle."""
    assert callable(make)
    with pytest.raises(ValueError, match=r"length|Zipf|median|sigma|maxima"):
        make()


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("fixed", Fixed()),
        ("fixed:10", Fixed(10)),
        ("fixed:10,20", Fixed(10, 20)),
        ("zipf", Zipf()),
        ("zipf:0.9", Zipf(0.9)),
        ("zipf:0.9,100,900", Zipf(0.9, 100, 900)),
        ("lognormal", Lognormal()),
        ("lognormal:300,0.5", Lognormal(prompt_median=300, prompt_sigma=0.5)),
        (
            "lognormal:300,0.5,60,0.7",
            Lognormal(prompt_median=300, prompt_sigma=0.5, output_median=60, output_sigma=0.7),
        ),
    ],
)
def test_laws_are_read_as_written(text: str, law: Lengths) -> None:
    """Who types a law gets that one."""
    assert length_law(text) == law


def test_a_trace_lends_its_lengths() -> None:
    """The lists without arrivals are there for this."""
    law = length_law("sharegpt")
    assert isinstance(law, Empirical)
    assert len(law.pairs) == 10_000
    assert sum(output for _, output in law.pairs) == 3_256_299


@pytest.mark.parametrize(
    "text", ["", "pareto", "fixed:1,2,3", "zipf:1,2,3,4", "lognormal:1,1,1,1,1", "sharegpt:3"]
)
def test_an_unknown_law_is_refused_with_those_there_are(text: str) -> None:
    """A typing error must not become a run with other lengths."""
    with pytest.raises(ValueError, match=r"known: fixed:.*sharegpt, arxiv"):
        length_law(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [("fixed:a", "takes numbers"), ("fixed:1.5", "whole"), ("zipf:1,5.5", "whole")],
)
def test_numbers_that_are_none_are_refused(text: str, what: str) -> None:
    """The same."""
    with pytest.raises(ValueError, match=what):
        length_law(text)
