"""Bounds that hold for any sizes, weights and estimates: the fair share, and the floor."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.policy import Policy, Tenant, Tier
from tests.support.script import Script, one_tier

USERS = ("a", "b", "c")


def true_cost(script: Script, id: str) -> int:
    """What it will be charged in the end, in tokens."""
    usage = script._truth[id]
    return usage.prompt_tokens + 2 * usage.output_tokens


@settings(max_examples=10, deadline=None)
@given(
    slots=st.integers(1, 4),
    weights=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=3, max_size=3),
    sizes=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 200)), min_size=3, max_size=3),
    limit=st.sampled_from([None, 200]),
)
def test_backlogged_users_never_drift_apart_by_more_than_the_bound(
    slots: int, weights: list[float], sizes: list[tuple[int, int]], limit: int | None
) -> None:
    """The user of small requests, of large ones, and of those whose length nobody guesses."""
    users = dict(zip(USERS, weights, strict=True))
    script = Script(one_tier(cost="tokens", tenants={"t": Tenant(users=users)}))
    script.replica("r", slots=slots).arrive_many("held", slots, user="z")
    largest = 0
    for user, (prompt, output) in zip(USERS, sizes, strict=True):
        script.arrive_many(
            user, 70, user=user, prompt_tokens=prompt, output_tokens=output,
            output_tokens_max=limit,
        )  # fmt: skip
        largest = max(largest, prompt + 2 * max(output, limit or 256))
    served = dict.fromkeys(USERS, 0.0)
    while all(any(id.startswith(user) for id in script.waiting) for user in USERS):
        seen = len(script.order)
        script.serve(1)
        for id in script.order[seen:]:
            served[id[0]] += true_cost(script, id)
        for one, other in combinations(USERS, 2):
            apart = served[one] / users[one] - served[other] / users[other]
            bound = (slots + 1) * largest * (1 / users[one] + 1 / users[other])
            assert abs(apart) <= bound, f"{one} and {other} are {apart} apart"


@settings(max_examples=10, deadline=None)
@given(
    slots=st.integers(1, 4),
    share=st.sampled_from([0.05, 0.2]),
    top=st.integers(10, 300),
    low=st.integers(1, 300),
)
def test_the_last_tier_waits_no_longer_than_its_floor_allows(
    slots: int, share: float, top: int, low: int
) -> None:
    """What the upper tier may release before the head below is owed its turn."""
    tiers = (Tier(name="top", patience_s=1e6), Tier(name="low", min_share=share, patience_s=1e6))
    script = Script(Policy(tiers=tiers, cost="tokens")).replica("r", slots=slots)
    known = {"output_tokens": 1, "output_tokens_max": 1}
    script.arrive_many("top", slots + 4, prompt_tokens=top, **known)
    script.arrive("low", tier=1, prompt_tokens=low, **known)
    passed = -(slots + 4) * (top + 2)
    number = 0
    while "low" in script.waiting:
        number += 1
        script.arrive(f"more{number}", prompt_tokens=top, **known).serve(1)
        passed += top + 2
        assert passed <= (low + 2) / share + (slots + 2) * (top + 2)
