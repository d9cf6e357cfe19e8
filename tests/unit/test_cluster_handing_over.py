"""Who decides changes: what waits is not thrown away by that, and nobody grants on the way out."""

from dataclasses import replace

import pytest

from gateway.cluster.messages import Led
from gateway.cluster.ports import LEASE_S
from gateway.core.messages import Finished, Outcome, Woke
from gateway.core.policy import Bounds, Tier
from tests.support.members import MODEL, Joined, Site
from tests.support.script import one_tier


def leading(*names: str, slots: int = 2, epoch: int = 1) -> Joined:
    """Gateways, the first of which leads; one engine that tells nothing of its load."""
    joined = Joined(*names)
    for site in joined.sites.values():
        site.find("r", slots=slots)
    joined.lead(names[0], epoch=epoch)
    joined.beat()
    return joined


def full(joined: Joined) -> Site:
    """Two of `f` run, and two of the leader wait; returns the leader."""
    joined.sites["f"].arrive("f1")
    joined.sites["f"].arrive("f2")
    leader = joined.sites["l"]
    leader.arrive("l1")
    leader.arrive("l2")
    assert joined.sites["f"].granted.keys() >= {"f1", "f2"}
    assert leader.scheduler.waiting.keys() >= {"l1", "l2"}
    return leader


def test_a_leader_that_hears_of_the_next_grants_nothing_of_its_own() -> None:
    """The guests' places would be given away twice, by the old leader and by the new one."""
    joined = leading("l", "f")
    leader = full(joined)
    leader.carry_out(leader.member.heard([Led("f", MODEL, 2, 0, 0)], joined.now))
    assert not leader.granted
    assert set(leader.member.away) == {"l1", "l2"}


@pytest.mark.parametrize("pools", [1, 2])
def test_a_lease_that_ended_lets_nothing_go(pools: int) -> None:
    """Another may have it by then."""
    joined = leading("l", "f")
    if pools == 2:
        for site in joined.sites.values():
            site.find("q", slots=1, models=frozenset({"n"}))
        joined.lead("l", epoch=1, pool="n")
        joined.beat()
        joined.sites["f"].arrive("fn", model="n", caps=(("k", 1),))
        joined.sites["l"].arrive("ln", caps=(("k", 1),))
    leader = full(joined)
    joined.now += LEASE_S
    leader.carry_out(leader.member.handle(Woke(), joined.now))
    assert not leader.member.led
    assert not leader.granted


def test_what_was_let_in_alone_is_not_refused_by_the_next_leader() -> None:
    """After an outage of Redis a third of those who waited would be told that it takes too long."""
    tier = Tier(name="only", queue_limit=0, patience_s=45.0)
    joined = Joined("g1", "g2", "g3", policy=one_tier(tiers=(tier,), headroom_max=0.0))
    for site in joined.sites.values():
        site.find("r", slots=3)
    joined.beat()
    joined.apart()
    for site in joined.sites.values():
        for number in range(60):
            site.arrive(f"{number}", user=f"u{number % 5}")
    for _ in range(30):
        joined.now += 1.0
        for site in joined.sites.values():
            for id in list(site.scheduler.granted):
                site.tell(Finished(id, Outcome.DONE))
    joined.lead("g1", epoch=2)
    joined.beat()
    joined.beat()
    assert [len(site.member.away) > 20 for site in joined.sites.values()] == [False, True, True]
    assert not any(site.refused for site in joined.sites.values())
    assert len(joined.sites["g1"].scheduler.waiting) > 80


def test_more_than_the_bounds_comes_back_from_several_that_were_alone() -> None:
    """Each let in as much as all may together; two of three would lose what they let in."""
    policy = replace(one_tier(), bounds=Bounds(waiting_per_user=5, waiting=6))
    joined = Joined("g1", "g2", "g3", policy=policy)
    for site in joined.sites.values():
        site.find("r", slots=3)
    joined.beat()
    joined.apart()
    for site in joined.sites.values():
        for number in range(6):
            site.arrive(f"{number}")
    joined.lead("g1", epoch=2)
    joined.beat()
    joined.beat()
    joined.sites["g2"].arrive("new", user="v")
    assert sum(len(site.refused) for site in joined.sites.values()) == 1
