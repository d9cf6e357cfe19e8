"""Made-up workloads, open, closed and merged: order, ends, independence of laws, and memory."""

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import islice
from math import inf
from statistics import mean

import pytest

from gateway.sim.workload.arrivals import Bursts, Poisson
from gateway.sim.workload.job import Job, Source
from gateway.sim.workload.lengths import Fixed, Zipf
from gateway.sim.workload.merged import Merged
from gateway.sim.workload.mixes import Crowd, Member, Tiers, crowd, uniform
from gateway.sim.workload.synthetic import USERS_MAX, ClosedLoop, Open

LIGHT = Open(
    arrivals=Poisson(rate_per_s=10.0),
    lengths=Zipf(),
    tiers=Tiers(uniform(3)),
    crowd=crowd(users=5, tenants=2),
    until_s=100.0,
)


def loop(users: int = 3, **options: object) -> ClosedLoop:
    """A closed loop that ends."""
    wanted = {"think_s": 2.0, "until_s": 200.0, "lengths": Zipf(), **options}
    return ClosedLoop(crowd=crowd(users=users), **wanted)  # type: ignore[arg-type]  # free keywords


def played(source: Source, service_s: float = 1.0) -> Iterator[Job]:
    """All jobs of a workload, each served on arrival within `service_s`, in order of arrival."""
    coming: list[tuple[float, int, Job]] = []
    ending: list[tuple[float, int, Job]] = []
    for job in source.jobs():
        heappush(coming, (job.arrived_at, job.number, job))
    while coming or ending:
        if not ending or (coming and coming[0][0] <= ending[0][0]):
            at, number, job = heappop(coming)
            yield job
            heappush(ending, (at + service_s, number, job))
        else:
            at, _, job = heappop(ending)
            following = source.ended(job, at)
            if following is not None:
                assert following.arrived_at >= at
                heappush(coming, (following.arrived_at, following.number, following))


def test_an_open_workload_is_numbered_in_order_and_repeats_itself() -> None:
    """Two schedulers are compared on the same requests, or on none."""
    jobs = list(LIGHT.jobs())
    assert [job.number for job in jobs] == list(range(len(jobs)))
    assert [job.arrived_at for job in jobs] == sorted(job.arrived_at for job in jobs)
    assert len(jobs) == pytest.approx(1_000, rel=0.1)
    assert jobs == list(LIGHT.jobs())
    assert jobs[-1].arrived_at < 100.0
    assert LIGHT.ended(jobs[0], 5.0) is None


def test_another_seed_is_another_workload() -> None:
    """Medians over seeds need runs that differ."""
    assert list(LIGHT.jobs()) != list(replace(LIGHT, seed=1).jobs())


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"lengths": Fixed()}, ("arrived_at", "tier", "user", "tenant")),
        ({"tiers": Tiers(uniform(2))}, ("arrived_at", "prompt_tokens", "output_tokens", "user")),
        ({"crowd": crowd(users=9)}, ("arrived_at", "tier", "prompt_tokens", "output_tokens")),
        ({"arrivals": Poisson(rate_per_s=11.0)}, ("tier", "user", "prompt_tokens")),
    ],
)
def test_changing_one_law_leaves_the_others_as_drawn(
    change: dict[str, object], kept: tuple[str, ...]
) -> None:
    """A sweep over K must see the same requests at the same times for every K."""
    changed = replace(LIGHT, **change)  # type: ignore[arg-type]  # free keywords
    pairs = list(zip(LIGHT.jobs(), changed.jobs(), strict=False))
    assert len(pairs) > 800
    for name in kept:
        assert all(getattr(before, name) == getattr(after, name) for before, after in pairs)
    assert any(before != after for before, after in pairs)


def test_a_limit_ends_a_workload_exactly() -> None:
    """A table of 10,000 requests is of so many."""
    assert len(list(replace(LIGHT, limit=37).jobs())) == 37
    assert list(replace(LIGHT, limit=0).jobs()) == []


def test_a_workload_without_an_end_is_refused() -> None:
    """A run that never ends says nothing, late."""
    with pytest.raises(ValueError, match="needs an end"):
        replace(LIGHT, until_s=inf)
    with pytest.raises(ValueError, match="needs an end"):
        loop(until_s=inf)


def test_clients_may_bound_answers_and_lose_patience() -> None:
    """What a client says and does is seen by schedulers; the true length is not."""
    for job in islice(replace(LIGHT, output_tokens_max=30, patience_s=5.0).jobs(), 200):
        assert job.output_tokens <= 30 == job.output_tokens_max
        assert job.leaves_at == job.arrived_at + 5.0
    for job in islice(LIGHT.jobs(), 200):
        assert job.output_tokens_max is job.leaves_at is None


def test_a_member_with_a_tier_keeps_it() -> None:
    """A power user in the last tier must not be found in the first."""
    members = Crowd((Member(user="a", tier=2), Member(user="b")))
    jobs = list(replace(LIGHT, crowd=members).jobs())
    assert {job.tier for job in jobs if job.user == "a"} == {2}
    assert {job.tier for job in jobs if job.user == "b"} == {0, 1, 2}


@pytest.mark.parametrize(
    "source",
    [
        replace(LIGHT, until_s=inf, limit=10**9),
        Merged([replace(LIGHT, until_s=inf, limit=10**9), replace(LIGHT, seed=1)]),
    ],
)
def test_a_million_requests_do_not_lie_in_memory(source: Source) -> None:
    """A run of a day on a laptop."""
    jobs = source.jobs()
    list(islice(jobs, 100))
    tracemalloc.start()
    try:
        for job in islice(jobs, 20_000):
            assert source.ended(job, job.arrived_at) is None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


def test_each_user_of_a_closed_loop_has_one_request_at_a_time() -> None:
    """It is what makes a loop closed: a slow gateway is asked less."""
    ends: dict[str, float] = {}
    gaps = []
    for job in played(loop(users=5, until_s=2_000.0)):
        if job.user in ends:
            gaps.append(job.arrived_at - ends[job.user])
            assert gaps[-1] >= 0
        ends[job.user] = job.arrived_at + 1.0
    assert len(ends) == 5
    assert mean(gaps) == pytest.approx(2.0, rel=0.06)


def test_what_users_of_a_closed_loop_ask_does_not_depend_on_how_they_are_served() -> None:
    """Otherwise the faster of two schedulers is asked something else."""
    asked: list[dict[str, list[int]]] = []
    for service_s in (0.1, 3.0):
        by_user: dict[str, list[int]] = {}
        for job in played(loop(), service_s):
            by_user.setdefault(job.user, []).append(job.prompt_tokens)
        asked.append(by_user)
    fast, slow = asked
    for user, prompts in slow.items():
        assert fast[user][: len(prompts)] == prompts
        assert len(fast[user]) > len(prompts)


def test_a_closed_loop_begins_in_order_and_ends_at_its_limit() -> None:
    """Open and closed workloads are played by the same world."""
    first = list(loop(users=50).jobs())
    assert [job.number for job in first] == list(range(50))
    assert [job.arrived_at for job in first] == sorted(job.arrived_at for job in first)
    jobs = list(played(loop(limit=40)))
    assert sorted(job.number for job in jobs) == list(range(40))
    assert all(job.arrived_at < 200.0 for job in played(loop()))


def test_a_closed_loop_begins_anew() -> None:
    """The second run of a comparison must not go on where the first one stopped."""
    source = loop()
    assert list(played(source)) == list(played(source))


def test_users_who_do_not_think_ask_at_once() -> None:
    """It is how saturation is made."""
    jobs = list(played(loop(users=2, think_s=0.0, until_s=10.0)))
    assert Counter(job.arrived_at for job in jobs) == {float(at): 2 for at in range(10)}


def test_a_stranger_s_end_starts_nothing() -> None:
    """Beside a trace, each end is told to everybody."""
    source = loop()
    list(source.jobs())
    stranger = Job(number=0, arrived_at=0.0, prompt_tokens=1, output_tokens=1, user="nobody")
    assert source.ended(stranger, 1.0) is None


@pytest.mark.parametrize(
    ("options", "what"),
    [({"think_s": -1.0}, "think_s"), ({"users": USERS_MAX + 1}, "at most")],
)
def test_impossible_loops_are_refused(options: dict[str, object], what: str) -> None:
    """The same as for every law."""
    with pytest.raises(ValueError, match=what):
        loop(**options)  # type: ignore[arg-type]  # free keywords


def test_users_of_a_closed_loop_have_names_of_their_own() -> None:
    """Two users of one name would share their turns, and ask the same twice."""
    twins = Crowd((Member(user="a"), Member(user="a")))
    with pytest.raises(ValueError, match="the same name"):
        ClosedLoop(crowd=twins, lengths=Fixed(), think_s=1.0, limit=9)


def test_merged_workloads_are_in_order_and_lose_nothing() -> None:
    """A power user is put beside light ones this way."""
    power = Open(
        arrivals=Bursts(size=3, every_s=10.0),
        lengths=Fixed(9, 9),
        crowd=Crowd((Member(user="power"),)),
        until_s=100.0,
    )
    jobs = list(Merged([LIGHT, power]).jobs())
    assert [job.number for job in jobs] == list(range(len(jobs)))
    assert [job.arrived_at for job in jobs] == sorted(job.arrived_at for job in jobs)
    light = [replace(job, number=0) for job in jobs if job.user != "power"]
    assert light == [replace(job, number=0) for job in LIGHT.jobs()]
    assert len(jobs) - len(light) == 30


def test_a_merged_closed_loop_goes_on() -> None:
    """Each client is answered by its own part, under numbers that stay unique."""
    source = Merged([LIGHT, loop(), Merged([loop(users=1, seed=5)])])
    jobs = list(played(source))
    assert len({job.number for job in jobs}) == len(jobs)
    alone = [replace(job, number=0) for job in played(loop())]
    ours = [replace(job, number=0) for job in jobs]
    assert all(job in ours for job in alone)
    assert len(jobs) == len(list(LIGHT.jobs())) + len(alone) + len(
        list(played(loop(users=1, seed=5)))
    )


def test_nothing_cannot_be_merged() -> None:
    """An empty list is a mistake of who calls."""
    with pytest.raises(ValueError, match="nothing"):
        Merged([])
