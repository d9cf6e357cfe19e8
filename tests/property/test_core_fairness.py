"""Bounds that hold for any sizes, weights and estimates: fair shares, the floor, and refunds."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.messages import Outcome, Request, Usage
from gateway.core.policy import Ageing, Policy, Price, Tenant, Tier
from tests.support.script import Script, one_tier

USERS = ("a", "b", "c")
COSTS = ("tokens", "requests", "gpu_seconds", "price")
WITHIN = ("fcfs", "shortest", "deadline", "prefix")
PRICES = {"m": Price(input=3.0, output=9.0)}
NOT_YET_KNOWN = 256
"""Output tokens that are predicted of somebody of whom nothing is known."""


def true_cost(policy: Policy, request: Request, usage: Usage) -> float:
    """What a request that used this much is charged in the end, by the definitions."""
    prompt, output, sequences = usage.prompt_tokens, usage.output_tokens, request.sequences
    if policy.cost == "requests":
        return float(sequences)
    if policy.cost == "gpu_seconds":
        gpu = policy.gpu_time
        attended = output * (prompt + output / sequences / 2)
        return prompt * gpu.prompt_s + output * gpu.output_s + attended * gpu.kv_s
    if policy.cost == "price":
        price = policy.prices[request.model]
        return (prompt * price.input + output * price.output) / 1e6
    return float(prompt + 2 * output)


def starts(script: Script, user: str = "u") -> tuple[float, ...]:
    """All tags that a charge to `user` moves."""
    pool = script.scheduler.pools[0]
    tenant = pool.queues[0].tenants["t"]
    shares = () if pool.shares is None else tuple(pool.shares.starts)
    return (tenant.users[user].start, tenant.start, *shares)


def close(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Equal but for rounding."""
    return all(abs(a - b) <= 1e-9 * max(1.0, abs(a)) for a, b in zip(one, other, strict=True))


@settings(max_examples=20, deadline=None)
@given(
    slots=st.integers(1, 4),
    weights=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=3, max_size=3),
    sizes=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 200)), min_size=3, max_size=3),
    limit=st.sampled_from([None, 200]),
    cost=st.sampled_from(COSTS),
    within_user=st.sampled_from(WITHIN),
    by_tenant=st.booleans(),
)
def test_backlogged_users_never_drift_apart_by_more_than_the_bound(
    *,
    slots: int,
    weights: list[float],
    sizes: list[tuple[int, int]],
    limit: int | None,
    cost: Any,
    within_user: Any,
    by_tenant: bool,
) -> None:
    """The user of small requests, of large ones, and of those whose length nobody guesses."""
    shares = dict(zip(USERS, weights, strict=True))
    tenants = {"t": Tenant(users=shares)}
    if by_tenant:
        tenants = {name: Tenant(weight=weight) for name, weight in shares.items()}
    policy = one_tier(cost=cost, within_user=within_user, tenants=tenants, prices=PRICES)
    script = Script(policy).replica("r", slots=slots).arrive_many("held", slots, user="z")
    largest = 0.0
    for user, (prompt, output) in zip(USERS, sizes, strict=True):
        for number in range(35):
            script.arrive(
                f"{user}{number}", user=user, tenant=user if by_tenant else "t",
                prompt_tokens=prompt, output_tokens=output, output_tokens_max=limit,
                prefix=(number % 3,),
            )  # fmt: skip
        most = Usage(prompt_tokens=prompt, output_tokens=max(output, limit or NOT_YET_KNOWN))
        largest = max(largest, true_cost(policy, script.request(f"{user}0"), most))
    served = dict.fromkeys(USERS, 0.0)
    for id in _ends(script):
        served[id[0]] += true_cost(policy, script.request(id), script._truth[id])
        for one, other in combinations(USERS, 2):
            apart = served[one] / shares[one] - served[other] / shares[other]
            bound = (slots + 1) * largest * (1 / shares[one] + 1 / shares[other])
            assert abs(apart) <= bound + 1e-9, f"{one} and {other} are {apart} apart"


def _ends(script: Script) -> Iterator[str]:
    """Ids as they are let go, while somebody of each user waits and the oldest end one by one."""
    while all(any(id.startswith(user) for id in script.waiting) for user in USERS):
        seen = len(script.order)
        script.serve(1)
        yield from script.order[seen:]


@settings(max_examples=15, deadline=None)
@given(
    slots=st.integers(1, 3),
    alone=st.integers(0, 25),
    weight=st.sampled_from([0.5, 1.0, 4.0]),
    was_here=st.booleans(),
    by_tenant=st.booleans(),
)
def test_idle_time_earns_no_credit_and_costs_nothing(
    *, slots: int, alone: int, weight: float, was_here: bool, by_tenant: bool
) -> None:
    """Neither who worked meanwhile nor who comes late may be made to pay for it."""
    users = {"a": 1.0, "b": weight}
    tenants = {"t": Tenant(users=users)}
    if by_tenant:
        tenants = {name: Tenant(weight=share) for name, share in users.items()}
    script = Script(one_tier(tenants=tenants)).replica("r", slots=slots)
    script.arrive_many("held", slots, user="z", tenant="z")

    def come(user: str, count: int, prefix: str) -> None:
        tenant = user if by_tenant else "t"
        script.arrive_many(prefix, count, user=user, tenant=tenant)

    if was_here:
        come("b", 2, "early")
    come("a", alone + 40, "a")
    script.serve(alone)
    before = script.count_of("a")
    come("b", 40, "b")
    script.serve(25)
    got = {"a": float(script.count_of("a") - before), "b": float(script.count_of("b"))}
    apart = got["a"] / users["a"] - got["b"] / users["b"]
    assert abs(apart) <= (slots + 1) * (1.0 + 1.0 / weight), f"{got} with {users}"


@settings(max_examples=15, deadline=None)
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
    most = (low + 2) / share + (slots + 2) * (top + 2)
    _serve_low(script, slots, top=top, low=low, before=most)


@settings(max_examples=15, deadline=None)
@given(
    slots=st.integers(1, 4),
    weight=st.sampled_from([0.1, 1.0, 4.0]),
    top=st.integers(10, 300),
    low=st.integers(1, 300),
)
def test_a_weighted_tier_waits_no_longer_than_its_weight_allows(
    slots: int, weight: float, top: int, low: int
) -> None:
    """Shares are an order too: nobody stands behind a saturating tier for ever."""
    tiers = (Tier(name="top", patience_s=1e6), Tier(name="low", weight=weight, patience_s=1e6))
    policy = Policy(tiers=tiers, cost="tokens", order="weighted", headroom_max=0.0)
    script = Script(policy).replica("r", slots=slots)
    most = (low + 2) / weight + (slots + 2) * (top + 2)
    _serve_low(script, slots, top=top, low=low, before=most)


@settings(max_examples=15, deadline=None)
@given(
    slots=st.integers(1, 3),
    after_s=st.sampled_from([0.0, 3.0, 10.0]),
    per_s=st.sampled_from([0.1, 1.0]),
    older=st.integers(0, 3),
)
def test_an_aged_request_waits_no_longer_than_those_aged_before_it_need(
    slots: int, after_s: float, per_s: float, older: int
) -> None:
    """With neither floor nor weight the one request kept behind still comes to its turn."""
    tiers = (Tier(name="top", patience_s=1e6), Tier(name="low", patience_s=1e6))
    policy = Policy(tiers=tiers, cost="tokens", ageing=Ageing(after_s=after_s, per_s=per_s))
    script = Script(policy).replica("r", slots=slots).arrive_many("top", slots + 4)
    script.arrive_many("low", older + 1, tier=1)
    number = 0
    while f"low{older}" in script.waiting:
        number += 1
        script.arrive(f"more{number}").serve(1)
        # Something ends once a second, so that each promotion may come a second late.
        assert script.now <= after_s + older * (1.0 / per_s + 1.0) + 2.0, "it is kept behind"


@settings(max_examples=8, deadline=None)
@given(prompt=st.integers(300, 3_000), blocks=st.integers(1, 4))
def test_a_cached_conversation_overtakes_for_a_bounded_time(prompt: int, blocks: int) -> None:
    """The user's other work: one conversation that is always warm must not hold it back."""
    script = Script(one_tier(within_user="prefix")).replica("r", slots=1)
    warm: dict[str, Any] = {
        "prefix": tuple(range(1, 1 + blocks)),
        "prompt_tokens": prompt,
        "output_tokens_max": 1,
    }
    script.arrive("first", **warm).arrive("old", prefix=(99,)).arrive("more0", **warm)
    number = 0
    while "old" in script.waiting:
        number += 1
        script.arrive(f"more{number}", **warm).serve(1)
        assert (number - 1) * prompt <= 16_384 + 2 * prompt, "it is overtaken for ever"
    assert number > 1, "nothing overtook it"


def _serve_low(script: Script, slots: int, *, top: int, low: int, before: float) -> None:
    """Tier 0 always has more; the one of tier 1 goes before that has cost more than `before`."""
    known = {"output_tokens": 1, "output_tokens_max": 1}
    script.arrive_many("top", slots + 4, prompt_tokens=top, **known)
    script.arrive("low", tier=1, prompt_tokens=low, **known)
    passed = -(slots + 4) * (top + 2)
    number = 0
    while "low" in script.waiting:
        number += 1
        script.arrive(f"more{number}", prompt_tokens=top, **known).serve(1)
        passed += top + 2
        assert passed <= before, "it is kept behind"


# --- charges ----------------------------------------------------------------------------------

BLAMELESS = ("bounce", "give_back", "failed", "rejected")


@settings(max_examples=40, deadline=None)
@given(
    cause=st.sampled_from(BLAMELESS),
    cost=st.sampled_from(COSTS),
    order=st.sampled_from(["strict", "weighted"]),
    sequences=st.sampled_from([1, 3]),
    weight=st.sampled_from([0.5, 4.0]),
    produced=st.integers(0, 2_000),
)
def test_what_is_our_fault_costs_its_user_nothing(
    *, cause: str, cost: Any, order: Any, sequences: int, weight: float, produced: int
) -> None:
    """A recall, a busy engine or a lost replica must not push its victim back in the line."""
    script = _line(cost=cost, order=order, weight=weight, sequences=sequences)
    before = starts(script)
    script.drain("r", draining=False).expect_granted("x", on="r").expect_waiting("last")
    assert starts(script) > before
    script.drain("r").progress("r", x=produced)
    if cause in ("bounce", "give_back"):
        getattr(script, cause)("x").expect_waiting("x")
    else:
        script.finish("x", outcome=Outcome(cause))
    assert close(starts(script), before)


@settings(max_examples=40, deadline=None)
@given(
    cost=st.sampled_from(COSTS),
    order=st.sampled_from(["strict", "weighted"]),
    sequences=st.sampled_from([1, 3]),
    weight=st.sampled_from([0.5, 4.0]),
    produced=st.integers(0, 2_000),
    output=st.integers(1, 2_000),
)
def test_in_the_end_everybody_has_been_charged_what_was_used(
    *, cost: Any, order: Any, sequences: int, weight: float, produced: int, output: int
) -> None:
    """Whoever guesses badly, or is guessed badly, pays exactly what the others do."""
    script = _line(cost=cost, order=order, weight=weight, sequences=sequences)
    before = starts(script)
    script.drain("r", draining=False).expect_granted("x", on="r").expect_waiting("last")
    script.drain("r").first_token("x").progress("r", x=produced)
    usage = Usage(prompt_tokens=300, output_tokens=output)
    spent = true_cost(script.scheduler.policy, script.request("x"), usage)
    if produced:
        seen = Usage(prompt_tokens=300, output_tokens=produced)
        least = true_cost(script.scheduler.policy, script.request("x"), seen)
        assert starts(script)[0] >= before[0] + least / weight - 1e-9
    script.finish("x", usage=usage)
    over = (weight, 1.0, 1.0)[: len(before)]
    wanted = tuple(tag + spent / by for tag, by in zip(before, over, strict=True))
    assert close(starts(script), wanted)


def _line(*, cost: Any, order: Any, weight: float, sequences: int) -> Script:
    """Request x of user u may go to r as soon as that is no longer drained; `last` waits on.

    The flow of u stays backlogged, so that nothing but the charge for x moves its tag.
    """
    policy = one_tier(
        cost=cost, order=order, prices=PRICES, recall=False,
        tenants={"t": Tenant(users={"u": weight})},
    )  # fmt: skip
    script = Script(policy).replica("r", slots=4).replica("s", slots=1)
    script.arrive("held", user="z", excluded=frozenset({"r"})).drain("r")
    script.arrive("last", excluded=frozenset({"r"}))
    return script.arrive("x", prompt_tokens=300, sequences=sequences)
