"""The search for a policy: bounded, repeatable, and better than what it began with."""

from collections.abc import Sequence
from typing import Any

from gateway.lab.knobs import Knob, knobs_of, turned
from gateway.lab.search import BATCH, Document, Search

KNOBS = [Knob(("inner", name), tuple(range(10))) for name in "abc"] + [
    Knob(("word",), ("x", "y", None))
]
START: Document = {"inner": {"a": 0, "b": 0, "c": 0}, "word": "x"}
WANTED: Document = {"inner": {"a": 7, "b": 3, "c": 9}, "word": None}


class Judged:
    """A judge that remembers; how far a document is from `WANTED`, knob by knob."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, documents: Sequence[Document]) -> list[tuple[float, ...]]:
        self.batches.append([str(document) for document in documents])
        return [(float(self.distance(document)),) for document in documents]

    @staticmethod
    def distance(document: Document) -> int:
        """Steps on the grids."""
        return sum(
            abs(knob.positions.index(knob.of(document)) - knob.positions.index(knob.of(WANTED)))
            for knob in KNOBS
        )


def searched(budget: int, seed: int = 1, **more: Any) -> tuple[Search, Judged]:
    """A search that has come to its end."""
    judged = Judged()
    told: dict[str, Any] = {"is_valid": lambda _: True, "mark_of": str, "judge": judged, **more}
    search = Search(START, KNOBS, budget=budget, seed=seed, **told)
    for _ in search.steps():
        pass
    return search, judged


def test_it_finds_the_best_there_is() -> None:
    """A search that is not better than luck is a waste of an operator's evening."""
    for seed in range(4):
        search, _ = searched(150, seed)
        assert search.best == WANTED
        assert search.best_order == (0.0,)


def test_it_never_tries_more_than_its_budget_nor_anything_twice() -> None:
    """A simulation takes seconds: the bound is what makes a search affordable."""
    for budget in (1, 2, 7, 40):
        search, judged = searched(budget)
        tried = [each for batch in judged.batches for each in batch]
        assert len(tried) == len(set(tried)) == search.trials <= budget
        assert tried[0] == str(START)
        assert max(map(len, judged.batches)) <= BATCH


def test_it_takes_the_same_way_every_time() -> None:
    """A policy that nobody can find again cannot be defended."""
    assert searched(60)[1].batches == searched(60)[1].batches
    assert searched(60)[1].batches != searched(60, seed=2)[1].batches


def test_it_ends_where_nothing_is_left_to_try() -> None:
    """Few knobs have few positions; a search must not go round for ever."""
    search, judged = searched(10_000, is_valid=lambda document: document["inner"]["a"] < 2)
    assert search.trials < 10_000
    assert all("'a': 0" in each or "'a': 1" in each for batch in judged.batches for each in batch)
    assert search.best["inner"]["a"] == 1


def test_what_does_not_help_is_turned_back() -> None:
    """Who puts a policy in force answers for each line that changed."""

    def changes(documents: Sequence[Document]) -> list[tuple[float, ...]]:
        return [
            (
                float(abs(document["inner"]["a"] - 7)),
                float(sum(knob.of(document) != knob.of(START) for knob in KNOBS)),
            )
            for document in documents
        ]

    search, _ = searched(150, judge=changes)
    assert search.best == {"inner": {"a": 7, "b": 0, "c": 0}, "word": "x"}


def test_neighbours_are_the_positions_beside_the_present_one() -> None:
    """A value that somebody wrote between two positions has neighbours all the same."""
    knob = Knob(("v",), (1.0, 2.0, 4.0, None))
    near = {value: knob.near({"v": value}) for value in (1.0, 3.0, 4.0, None, 9.0, 0.5)}
    assert near == {
        1.0: [2.0], 3.0: [2.0, 4.0], 4.0: [2.0, None], None: [4.0], 9.0: [4.0], 0.5: [1.0],
    }  # fmt: skip
    assert Knob(("v",), (False, True)).near({"v": True}) == [False]


def test_turning_a_knob_leaves_the_document_as_it_was() -> None:
    """All trials of a batch come from one document."""
    document = {"tiers": [{"weight": 1.0}], "scheduling": {"ageing": {"after_s": None}}}
    knob = Knob(("tiers", 0, "weight"), (1.0, 2.0))
    assert turned(document, knob, 2.0)["tiers"] == [{"weight": 2.0}]
    assert document["tiers"] == [{"weight": 1.0}]
    assert knob.label == "tiers.0.weight"


def test_every_knob_is_a_place_of_the_policy_document() -> None:
    """A knob that turns nothing takes its share of the budget."""
    from gateway.admin.policy_document import checked, document_of
    from gateway.settings import load_settings

    document = document_of(
        load_settings(config=None, environ={}, overrides={"replicas": ("http://engine:1",)})
    )
    knobs = knobs_of(document)
    assert len(knobs) > 20
    for knob in knobs:
        for position in knob.positions:
            assert checked(turned(document, knob, position))
        assert knob.of(document) != "else", "the place is there"
