"""Leases that come late, leaders that leave, and what a gateway remembers of both."""

import pytest

from gateway.cluster.candidacy import SPREAD_S
from gateway.cluster.deciders import FORGET_AFTER_S
from gateway.cluster.follower import ALONE_AFTER_S, EPOCHS_MAX, Epochs, Follower, Phase
from gateway.cluster.leader import ABSENT_S
from gateway.cluster.messages import Led, Left
from gateway.cluster.ports import BEAT_S, LEASE_MARGIN_S, LEASE_S, SILENCE_S, Leader, Standing
from gateway.core.messages import ReplicaReported
from gateway.core.report import ReplicaReport
from tests.support.members import MODEL, Joined, Site


def standing(leader: str | None, *names: str, epoch: int = 1) -> Standing:
    """What the store says: these are there, and that one leads."""
    leaders = {} if leader is None else {MODEL: Leader(leader, epoch)}
    return Standing(gateways=dict.fromkeys(names, ""), leaders=leaders)


def one(*names: str) -> tuple[Joined, Site]:
    """Gateways of which the first is looked at."""
    joined = Joined(*names)
    for site in joined.sites.values():
        site.find("r", slots=2)
    return joined, joined.sites[names[0]]


def test_a_lease_whose_answer_came_late_is_not_believed() -> None:
    """A gateway that slept would lead with a lease that is another's by now."""
    joined, site = one("a")
    asked_at = joined.now
    joined.now += LEASE_S - LEASE_MARGIN_S
    site.carry_out(site.member.stands(standing("a", "a"), joined.now, asked_at=asked_at))
    assert not site.member.led


def test_a_renewal_whose_answer_came_late_ends_the_lead() -> None:
    """Its lease has run out, and the answer says only how things were."""
    joined, site = one("a")
    site.carry_out(site.member.stands(standing("a", "a"), joined.now, asked_at=joined.now))
    assert site.member.led
    asked_at = joined.now
    joined.now += LEASE_S
    site.carry_out(site.member.stands(standing("a", "a"), joined.now, asked_at=asked_at))
    assert not site.member.led


def test_a_store_that_forgot_hides_no_gateway_not_even_the_leader_of_before() -> None:
    """Its slots would be given out while its streams still run there."""
    joined, site = one("a", "b")
    both = ("a", "b")
    for each in (standing("b", *both), standing("a", *both, epoch=2), standing("a", "a", epoch=3)):
        joined.now += SILENCE_S / 2
        site.carry_out(site.member.stands(each, joined.now, asked_at=joined.now))
    assert site.member.led[MODEL].awaited == {"b"}


def test_a_leader_that_left_is_not_followed_on_the_word_of_the_store() -> None:
    """What the store answered before comes after: two seconds would go by with nobody deciding."""
    joined, site = one("a", "b")
    site.carry_out(site.member.stands(standing("b", "a", "b"), joined.now, asked_at=joined.now))
    phases = [site.member.followers[MODEL].phase]
    site.carry_out(site.member.heard([Left("b", MODEL, 1)], joined.now))
    site.carry_out(site.member.stands(standing("b", "a", "b"), joined.now, asked_at=joined.now))
    phases.append(site.member.followers[MODEL].phase)
    newer = standing("b", "a", "b", epoch=2)
    site.carry_out(site.member.stands(newer, joined.now, asked_at=joined.now))
    phases.append(site.member.followers[MODEL].phase)
    assert phases == [Phase.FOLLOWING, Phase.LOOKING, Phase.FOLLOWING]


def test_when_all_leave_at_once_somebody_leads_to_the_end() -> None:
    """At a stop of all workers what waits would wait for two seconds, and then be shared out."""
    joined, site = one("a", "b")
    site.carry_out(site.member.stands(standing(None, "a", "b"), joined.now, asked_at=joined.now))
    site.carry_out(site.member.retire(joined.now))
    assert not site.member.bid(joined.now + SPREAD_S).wants
    assert site.member.bid(joined.now + 4 * SPREAD_S).wants == (MODEL,)


def test_the_epoch_of_a_forgotten_pool_is_remembered() -> None:
    """A leader of the past would be believed once a pool was quiet for a while."""
    joined, site = one("a", "b")
    site.carry_out(site.member.heard([Led("b", "other", 9, 0, 0)], joined.now))
    for _ in range(2):
        joined.now += FORGET_AFTER_S + 1.0
        site.carry_out(site.member.beat(joined.now))
    assert "other" not in site.member.followers
    site.carry_out(site.member.heard([Led("b", "other", 8, 0, 0)], joined.now))
    assert site.member.followers["other"].phase is Phase.LOOKING


def test_no_more_epochs_are_remembered_than_a_bound() -> None:
    """Names of pools come from others: a memory without end would be theirs to fill."""
    epochs = Epochs()
    for number in range(EPOCHS_MAX + 10):
        follower = Follower("a", f"p{number}", 0.0)
        follower.epoch = 5
        epochs.keep(follower)
    assert [epochs.of("p9"), epochs.of("p10")] == [0, 5]


def test_workers_that_never_reached_the_store_take_their_part_each() -> None:
    """Eight workers that start while Redis is down would fill every replica eight times."""
    _, site = one("a")
    site.member.deciders.company.sharers_min = 8
    site.carry_out(site.member.apart(100.0))
    assert site.scheduler.policy.sharers == 8


def test_only_the_pools_that_nobody_leads_are_shared_out() -> None:
    """One model whose leader is cut off would cost every other model most of its replicas."""
    joined = Joined("a", "b", "c")
    for site in joined.sites.values():
        for model in ("m", "other"):
            site.find(f"r-{model}", slots=6, models=frozenset({model}))
    joined.lead("a", epoch=1, pool="other")
    for _ in range(int(ALONE_AFTER_S / BEAT_S) + 1):
        joined.beat()
    one = joined.sites["a"]
    assert one.member.followers["m"].phase is Phase.ALONE
    for number in range(6):
        one.arrive(f"m{number}", model="m")
        one.arrive(f"o{number}", model="other")
    assert sorted(one.granted) == ["m0", "m1", *(f"o{number}" for number in range(6))]


def test_what_is_found_while_the_store_is_lost_is_shared_at_once() -> None:
    """Each gateway would fill a new replica until its next heartbeat."""
    joined, site = one("a", "b", "c")
    joined.beat()
    joined.apart()
    site.find("new", slots=6, models=frozenset({"new"}))
    for number in range(6):
        site.arrive(f"n{number}", model="new")
    assert len(site.granted) == 2


@pytest.mark.parametrize("tells", [False, True])
def test_what_a_missing_gateway_had_stays_taken_where_the_replica_tells_nothing(
    tells: bool,
) -> None:
    """A new leader would put as much again onto an engine that is full."""
    joined = Joined("f", "old", "new")
    for site in joined.sites.values():
        site.find("r", slots=2)
    joined.lead("old", epoch=1)
    joined.beat()
    joined.sites["f"].arrive("a")
    joined.sites["f"].arrive("b")
    for _ in range(5):
        joined.beat()
    new = joined.sites["new"]
    if tells:
        report = ReplicaReport(running=2, waiting=0)
        new.tell(ReplicaReported(replica="r", sent_at=joined.now, report=report))
    joined.gone |= {"old", "f"}
    joined.lead("new", epoch=2)
    new.arrive("c")
    for _ in range(4):
        joined.beat()
    assert new.member.followers[MODEL].phase is Phase.LEADING
    assert not new.granted
    assert bool(new.scheduler.granted) is not tells
    for _ in range(int(ABSENT_S / BEAT_S) + 1):
        joined.beat()
    assert bool(new.granted) is not tells
