"""Gateways that have not found the same replicas: nobody runs beside the books, nobody is lost."""

from gateway.cluster.ports import BEAT_S
from gateway.core.messages import Finished, Outcome
from tests.support.members import Joined


def test_a_grant_for_a_replica_that_is_not_found_here_goes_to_another() -> None:
    """It would run on whatever this gateway likes, and count in no book."""
    joined = Joined("l", "f")
    joined.sites["l"].find("r1", slots=1)
    joined.sites["f"].find("r1", slots=1)
    joined.sites["l"].find("r2", slots=4)
    joined.lead("l", epoch=1)
    joined.beat()
    follower = joined.sites["f"]
    follower.arrive("a")
    assert follower.granted == {"a": "r1"}
    follower.arrive("b")
    assert follower.granted == {"a": "r1"}
    assert "f/b" in joined.sites["l"].scheduler.waiting
    follower.tell(Finished("a", Outcome.DONE))
    assert follower.granted == {"a": "r1", "b": "r1"}
    assert set(joined.sites["l"].scheduler.granted) == {"f/b"}


def test_a_model_that_the_leader_has_not_found_yet_is_asked_for_again() -> None:
    """Each gateway that scrapes sooner would fill the new replica for itself."""
    joined = Joined("l", "f")
    both = frozenset({"m", "n"})
    for site in joined.sites.values():
        site.find("r1", slots=1)
    joined.sites["f"].find("r2", slots=1, models=both)
    joined.lead("l", epoch=1)
    joined.beat()
    follower, leader = joined.sites["f"], joined.sites["l"]
    follower.arrive("a", model="n")
    joined.beat()
    assert not follower.granted
    assert "a" in follower.member.away
    leader.find("r2", slots=1, models=both)
    joined.beat()
    assert follower.granted == {"a": "r2"}
    assert set(leader.scheduler.granted) == {"f/a"}


def test_a_model_that_the_leader_never_finds_is_served_all_the_same() -> None:
    """The leader alone cannot reach a replica, and its clients wait for ever."""
    joined = Joined("l", "f")
    for site in joined.sites.values():
        site.find("r1", slots=1)
    joined.sites["f"].find("r2", slots=1, models=frozenset({"m", "n"}))
    joined.lead("l", epoch=1)
    joined.beat()
    joined.sites["f"].arrive("a", model="n")
    for _ in range(int(3.0 / BEAT_S)):
        joined.beat()
    assert joined.sites["f"].granted == {"a": "r2"}


def test_what_a_guest_tells_anew_includes_how_far_it_is() -> None:
    """After a lost message a running request would count as not begun, and be taken back."""
    joined = Joined("l", "f")
    for site in joined.sites.values():
        site.find("r", slots=2)
    joined.lead("l", epoch=1)
    joined.beat()
    follower, leader = joined.sites["f"], joined.sites["l"]
    follower.arrive("a")
    shadow = follower.scheduler.granted["a"][0]
    follower.scheduler.granted["a"][1].ledger.start("a")
    follower.scheduler.granted["a"][1].ledger.produced({"a": 7})
    assert shadow.is_started
    follower.member.deciders.sync(follower.member.followers["m"], joined.now)
    joined.deliver()
    grant = leader.scheduler.granted["f/a"][0]
    assert grant.is_started
    assert grant.output_tokens == 7
