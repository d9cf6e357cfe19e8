"""What is expected of a request before anybody knows."""

import json
from random import Random
from typing import Any

import pytest

from gateway.core.messages import Request, Usage
from gateway.core.predict import (
    FOLLOWED_SAMPLES,
    OUTPUT_TOKENS_UNSEEN,
    REFRESH_SAMPLES,
    SAMPLES_MIN,
    Predictor,
)
from gateway.core.quantiles import RELATIVE_ERROR


def request(**fields: object) -> Request:
    """A request of one user, with these fields."""
    given = {"id": "a", "model": "m", "tier": 0, "tenant": "t", "user": "u", "arrived_at": 0.0}
    return Request(**{**given, **fields})  # type: ignore[arg-type]  # free keywords


def taught(predictor: Predictor, *lengths: int, times: int = 1, **fields: object) -> None:
    """So many times over, answers of these lengths to requests with these fields."""
    for _ in range(times):
        for output_tokens in lengths:
            predictor.learn(request(**fields), Usage(output_tokens=output_tokens))


def revived(predictor: Predictor, entries_max: int) -> Predictor:
    """Another one, from its snapshot as it comes back from a file."""
    other = Predictor(entries_max)
    other.restore(json.loads(json.dumps(predictor.snapshot())))
    return other


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
    taught(predictor, 40, times=30)
    taught(predictor, 900, times=30, user="v")
    assert predictor.output_tokens(request()) == 40
    assert predictor.output_tokens(request(output_tokens_max=16)) == 16
    assert predictor.output_tokens(request(user="v")) == 900


def test_a_few_answers_are_enough_and_fewer_are_not_believed() -> None:
    """Who says nothing and then produces 4,000 tokens each time is known for it at once."""
    predictor = Predictor(10)
    for _ in range(SAMPLES_MIN):
        assert predictor.output_tokens(request()) == OUTPUT_TOKENS_UNSEEN
        taught(predictor, 4_000)
    assert predictor.output_tokens(request()) == 4_000


def test_one_answer_unlike_the_others_changes_little() -> None:
    """Once in a while everybody asks for a long story."""
    predictor = Predictor(10)
    taught(predictor, 4_000, 40, 40)
    assert predictor.output_tokens(request()) == pytest.approx(40, rel=RELATIVE_ERROR)


def test_a_stranger_is_taken_for_one_of_its_tenant_and_else_for_one_of_the_model() -> None:
    """The first request of a colleague is placed and charged like those of its team."""
    predictor = Predictor(10)
    taught(predictor, 40, times=30)
    taught(predictor, 900, times=31, tenant="s", user="w")
    taught(predictor, 7, times=30, model="other")
    taught(predictor, 5, times=30, route="completions")
    assert predictor.output_tokens(request(user="new")) == 40
    assert predictor.output_tokens(request(tenant="s", user="new")) == 900
    of_all = predictor.output_tokens(request(tenant="new", user="new"))
    assert of_all in (
        pytest.approx(40, rel=RELATIVE_ERROR),
        pytest.approx(900, rel=RELATIVE_ERROR),
    )
    assert predictor.output_tokens(request(model="other", tenant="new")) == 7
    assert predictor.output_tokens(request(route="completions", tenant="new")) == 5
    assert predictor.output_tokens(request(model="unheard", tenant="t")) == OUTPUT_TOKENS_UNSEEN


def test_one_power_user_does_not_speak_for_its_whole_tenant() -> None:
    """Ten colleagues of few short answers outweigh hundreds of long ones of a batch job."""
    predictor = Predictor(100)
    taught(predictor, 4_000, times=500, user="batch")
    for number in range(10):
        taught(predictor, 40, times=REFRESH_SAMPLES, user=f"u{number}")
    taught(predictor, 4_000, times=100, user="batch")
    assert predictor.output_tokens(request(user="new")) == pytest.approx(40, rel=RELATIVE_ERROR)


@pytest.mark.parametrize(("before", "after"), [(20, 3_000), (3_000, 20), (100, 200)])
@pytest.mark.parametrize("history", [10, 41, 5_000])
def test_a_user_that_changes_is_followed_within_the_stated_number_of_answers(
    before: int, after: int, history: int
) -> None:
    """The chat client of yesterday is the batch job of today."""
    predictor = Predictor(10)
    taught(predictor, before, times=history)
    taught(predictor, after, times=FOLLOWED_SAMPLES)
    assert predictor.output_tokens(request()) == pytest.approx(after, rel=RELATIVE_ERROR)


def test_other_quantiles_are_told_and_clamped_alike() -> None:
    """A careful placement asks what nine of ten answers stay below."""
    predictor = Predictor(10)
    assert predictor.output_tokens(request(), 0.9) == OUTPUT_TOKENS_UNSEEN
    random = Random(4)
    lengths = [round(random.lognormvariate(5.0, 1.0)) for _ in range(500)]
    taught(predictor, *lengths)
    low, median, high = (predictor.output_tokens(request(), q) for q in (0.1, 0.5, 0.9))
    assert 1 <= low < median < high
    assert sum(length <= high for length in lengths) / 500 == pytest.approx(0.9, abs=0.06)
    assert predictor.output_tokens(request(output_tokens_max=30), 0.9) == 30
    assert predictor.output_tokens(request(output_tokens_max=0), 0.9) == 0
    assert predictor.output_tokens(request(user="new"), 0.9) > median


def test_an_answer_cut_off_where_it_was_foreseen_teaches_nothing() -> None:
    """Else a few cheap requests for one token make the next long ones look short."""
    predictor = Predictor(10)
    taught(predictor, 1, times=50, output_tokens_max=1)
    assert predictor.output_tokens(request()) == OUTPUT_TOKENS_UNSEEN
    taught(predictor, 900, times=10)
    taught(predictor, 1, times=50, output_tokens_max=1)
    assert predictor.output_tokens(request()) == 900


def test_an_answer_cut_off_beyond_what_was_foreseen_raises_the_prediction() -> None:
    """It would have gone on: a client that always fills its limit is predicted to fill it."""
    predictor = Predictor(10)
    taught(predictor, 2_000, times=SAMPLES_MIN, output_tokens_max=2_000)
    assert predictor.output_tokens(request(output_tokens_max=2_000)) == 2_000
    assert predictor.output_tokens(request(output_tokens_max=500)) == 500
    taught(predictor, 30, times=FOLLOWED_SAMPLES, output_tokens_max=2_000)
    assert predictor.output_tokens(request(output_tokens_max=2_000)) == pytest.approx(30, rel=0.19)


def test_output_is_learnt_for_one_sequence() -> None:
    """Who asks for n = 4 must not be charged fourfold afterwards."""
    predictor = Predictor(10)
    taught(predictor, 400, times=SAMPLES_MIN, sequences=4)
    assert predictor.output_tokens(request()) == 100


def test_answers_without_a_token_are_predicted_as_one() -> None:
    """A charge of nothing would let its client overtake everybody."""
    predictor = Predictor(10)
    taught(predictor, 0, times=30)
    assert predictor.output_tokens(request()) == 1


def test_embeddings_decode_nothing_and_teach_nothing() -> None:
    """They would drag the prediction of the same user's chats to zero."""
    predictor = Predictor(10)
    for _ in range(10):
        predictor.learn(request(output_tokens_max=0), Usage(prompt_tokens=100))
    assert predictor.output_tokens(request(output_tokens_max=0)) == 0
    assert predictor.output_tokens(request()) == OUTPUT_TOKENS_UNSEEN


def entries(predictor: Predictor) -> list[int]:
    """How many entries each table holds."""
    return [len(table) for table in predictor.snapshot().values()]


def test_no_more_histories_are_kept_than_allowed() -> None:
    """A client that invents names of whatever kind must not fill the memory."""
    predictor = Predictor(entries_max=5)
    for number in range(50):
        for name in ("user", "tenant", "model", "route"):
            for _ in range(SAMPLES_MIN):
                told = request(body_bytes=400, **{name: f"{name}{number}"})
                predictor.learn(told, Usage(prompt_tokens=100, output_tokens=number + 1))
    assert entries(predictor) == [5, 5, 5, 5]
    assert predictor.output_tokens(request(route="route49")) == 50
    assert predictor.output_tokens(request(route="route0")) == OUTPUT_TOKENS_UNSEEN


def test_who_was_heard_of_longest_ago_is_dropped_first() -> None:
    """Those who are here now keep their histories."""
    predictor = Predictor(entries_max=2)
    for user, tenant, length in (("a", "s", 10), ("b", "t", 20), ("a", "s", 10), ("c", "u", 30)):
        taught(predictor, length, times=SAMPLES_MIN, user=user, tenant=tenant)
    assert predictor.output_tokens(request(user="a", tenant="s")) == 10
    assert predictor.output_tokens(request(user="c", tenant="u")) == 30
    assert ["m", "t", "b", "chat"] not in [entry[0] for entry in predictor.snapshot()["users"]]


def test_the_ratio_of_a_model_in_use_is_kept() -> None:
    """Of many models, that of every request must not be forgotten for being the oldest."""
    predictor = Predictor(entries_max=2)
    for model in ("old", "a", "old", "b"):
        told = request(model=model, body_bytes=4_000)
        predictor.learn(told, Usage(prompt_tokens=2_000, output_tokens=1))
    assert predictor.prompt_tokens(request(model="old", body_bytes=4_000)) == 2_000
    assert predictor.prompt_tokens(request(model="a", body_bytes=4_000)) == 1_000


def test_the_bound_follows_a_new_policy() -> None:
    """An operator who lowers it gets the memory back at once."""
    predictor = Predictor(entries_max=10)
    for number in range(10):
        grown(predictor, number)
    assert entries(predictor) == [10, 10, 10, 10]
    predictor.resize(3)
    assert entries(predictor) == [3, 3, 3, 3]
    assert predictor.output_tokens(request(user="u9", tenant="t9", model="m9")) == 100
    predictor.resize(4)
    for number in range(10):
        grown(predictor, number)
    assert entries(predictor) == [4, 4, 4, 4]


def grown(predictor: Predictor, number: int) -> None:
    """One more user of one more tenant, of another model, is known."""
    told = request(user=f"u{number}", tenant=f"t{number}", model=f"m{number}", body_bytes=4_000)
    for _ in range(SAMPLES_MIN):
        predictor.learn(told, Usage(prompt_tokens=1_000, output_tokens=10 * number + 10))


def lively(samples: int) -> Predictor:
    """One that has seen many users of several tenants and models."""
    random = Random(samples)
    predictor = Predictor(20)
    for _ in range(samples):
        predictor.learn(*settled(random))
    return predictor


def settled(random: Random) -> tuple[Request, Usage]:
    """A request of somebody and what it used."""
    given = request(
        model=random.choice("mn"),
        tenant=random.choice("st"),
        user=f"u{random.randrange(9)}",
        body_bytes=random.randrange(4_000),
        output_tokens_max=random.choice([None, 0, 1, 100]),
    )
    output_tokens = round(random.lognormvariate(5.0, 1.5))
    if given.output_tokens_max is not None:
        output_tokens = min(output_tokens, given.output_tokens_max)
    return given, Usage(prompt_tokens=random.randrange(1_000), output_tokens=output_tokens)


@pytest.mark.parametrize("samples", [0, 1, 100, 3_000])
def test_a_snapshot_comes_back_exactly_and_goes_on_alike(samples: int) -> None:
    """After a restart, or on another gateway, the same is decided as before."""
    predictor = lively(samples)
    other = revived(predictor, 20)
    random = Random(5)
    for _ in range(500):
        told, usage = settled(random)
        for quantile in (0.5, 0.9):
            assert other.output_tokens(told, quantile) == predictor.output_tokens(told, quantile)
        assert other.prompt_tokens(told) == predictor.prompt_tokens(told)
        predictor.learn(told, usage)
        other.learn(told, usage)
    assert other.snapshot() == predictor.snapshot()


def test_a_snapshot_of_a_larger_one_is_cut_to_the_own_bound() -> None:
    """The bound of the new policy holds, whatever the file says; the latest are kept."""
    predictor = lively(500)
    small = revived(predictor, 3)
    assert entries(small) == [3, 3, 2, 2]
    assert small.snapshot()["users"] == predictor.snapshot()["users"][-3:]


@pytest.mark.parametrize(
    "spoilt",
    [
        {"users": None},
        {"users": [1]},
        {"users": [[["m"], 5]]},
        {"users": [[["m"], 5, {}]]},
        {"tenants": {"a": 1}},
        {"models": "abc"},
        {"tokens_per_byte": [["m", -1.0]]},
        {"tokens_per_byte": [["m", float("nan")]]},
        {"tokens_per_byte": [["m", None]]},
    ],
)
def test_a_damaged_snapshot_is_refused_and_changes_nothing(spoilt: dict[str, Any]) -> None:
    """Half a file must not become everybody's prediction."""
    predictor = lively(300)
    before = predictor.snapshot()
    with pytest.raises(ValueError, match=r"not a snapshot|unpack"):
        predictor.restore({**before, **spoilt})
    with pytest.raises(ValueError, match="not a snapshot"):
        predictor.restore({})
    assert predictor.snapshot() == before


@pytest.mark.parametrize("median", [0, -4])
def test_a_snapshot_with_a_median_that_cannot_be_is_refused(median: int) -> None:
    """A negative prediction would break the ledger of a replica."""
    predictor = Predictor(10)
    taught(predictor, 40, times=10)
    spoilt = predictor.snapshot()
    spoilt["users"][0][1] = median
    with pytest.raises(ValueError, match="median"):
        predictor.restore(spoilt)
