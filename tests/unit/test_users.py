"""Names that callers make up: any number may come, few are kept, and nobody escapes a share."""

import random
from collections import Counter

from gateway.tenancy.users import FORGET_AFTER_S, NAME_CHARS_MAX, SHARED_FLOWS, UserNames

KEPT = 100


class Clock:
    """Moved by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def size_of(names: UserNames) -> int:
    """Names in memory."""
    return sum(len(seen) for seen in names._seen.values())


def test_names_within_the_bound_are_flows_of_their_own() -> None:
    """Two people of one application share it fairly."""
    names = UserNames(KEPT, Clock())
    assert [names.flow_of("t", f"user{n}") for n in range(KEPT)] == [
        f"user{n}" for n in range(KEPT)
    ]
    assert names.flow_of("t", "user3") == "user3"


def test_a_flood_of_names_shares_few_flows_and_keeps_memory_flat() -> None:
    """A fresh name for each request would be a share for each request, and a leak besides."""
    rng = random.Random(7)
    names = UserNames(KEPT, Clock())
    flows = Counter(names.flow_of("t", f"{rng.random()}") for _ in range(50_000))
    assert size_of(names) == KEPT
    assert len(flows) == KEPT + SHARED_FLOWS
    shared = [count for flow, count in flows.items() if flow.startswith("~")]
    assert len(shared) == SHARED_FLOWS
    assert min(shared) > 0.8 * max(shared), "spread evenly"


def test_a_name_beyond_the_bound_is_always_hashed_to_the_same_flow() -> None:
    """A user who hops between flows would be served out of order."""
    names = UserNames(1, Clock())
    names.flow_of("t", "first")
    assert len({names.flow_of("t", "late") for _ in range(20)}) == 1
    assert names.flow_of("t", "first") == "first", "and the flood displaces nobody"


def test_each_tenant_has_a_bound_of_its_own() -> None:
    """One tenant's flood must not take the names of another."""
    names = UserNames(2, Clock())
    for n in range(50):
        names.flow_of("loud", f"u{n}")
    assert names.flow_of("quiet", "alice") == "alice"


def test_users_of_the_configuration_are_always_kept_apart() -> None:
    """Their weights were paid for, flood or no flood."""
    names = UserNames(1, Clock(), known=[("t", "vip")])
    names.flow_of("t", "first")
    assert names.flow_of("t", "vip") == "vip"
    assert names.flow_of("other", "first") == "first"
    assert names.flow_of("other", "vip").startswith("~"), "known only in its own tenant"


def test_a_name_unheard_of_for_an_hour_makes_room() -> None:
    """Yesterday's flood must not hash today's users together."""
    clock = Clock()
    names = UserNames(2, clock)
    names.flow_of("t", "old")
    clock.now += FORGET_AFTER_S / 2
    names.flow_of("t", "young")
    clock.now += FORGET_AFTER_S / 2
    assert names.flow_of("t", "new") == "new"
    assert names.flow_of("t", "newer").startswith("~"), "the young one stays"
    assert size_of(names) == 2


def test_a_name_in_use_is_not_forgotten() -> None:
    """It is the least recently heard of that goes."""
    clock = Clock()
    names = UserNames(2, clock)
    names.flow_of("t", "steady")
    names.flow_of("t", "gone")
    clock.now += FORGET_AFTER_S
    names.flow_of("t", "steady")
    assert names.flow_of("t", "new") == "new"
    assert names.flow_of("t", "steady") == "steady"
    assert names.flow_of("t", "gone").startswith("~")


def test_an_endless_name_is_cut() -> None:
    """It goes into logs and into memory."""
    names = UserNames(KEPT, Clock())
    assert names.flow_of("t", "x" * 10**6) == "x" * NAME_CHARS_MAX
    assert names.flow_of("t", "\U0001f600" * 500) == "\U0001f600" * NAME_CHARS_MAX
