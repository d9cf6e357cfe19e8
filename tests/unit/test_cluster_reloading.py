"""A reload comes to one gateway before the others: tiers go by their names, not by their ranks."""

from gateway.core.messages import PolicyChanged
from gateway.core.policy import Policy, Tier
from tests.support.members import Joined
from tests.support.script import one_tier


def tiers(*names: str) -> Policy:
    """Tiers of these names, the best first."""
    made = tuple(Tier(name=name, queue_limit=0, patience_s=1e6) for name in names)
    return one_tier(tiers=made, headroom_max=0.0)


def joined(*names: str) -> Joined:
    """A leader that runs one of its own, and a follower."""
    found = Joined("l", "f", policy=tiers(*names))
    for site in found.sites.values():
        site.find("r", slots=1)
    found.lead("l", epoch=1)
    found.beat()
    found.sites["l"].arrive("held")
    return found


def rank_at_the_leader(found: Joined, id: str) -> str:
    """Name of the tier in which the leader has a request of the follower."""
    scheduler = found.sites["l"].scheduler
    return scheduler.policy.tiers[scheduler.waiting[f"f/{id}"].request.tier].name


def test_the_leader_that_reloads_first_knows_what_the_others_mean() -> None:
    """Until the last gateway has reloaded, batch jobs would overtake what people wait for."""
    found = joined("premium", "batch")
    found.sites["f"].arrive("before", tier=1)
    found.sites["l"].tell(PolicyChanged(tiers("premium", "standard", "batch")))
    found.sites["f"].arrive("after", tier=1)
    assert rank_at_the_leader(found, "before") == rank_at_the_leader(found, "after") == "batch"


def test_a_follower_that_reloads_first_is_understood() -> None:
    """Whoever is in a tier that is removed goes where the reload says, at all gateways."""
    found = joined("premium", "standard", "batch")
    found.sites["f"].arrive("before", tier=2)
    found.sites["f"].arrive("gone", tier=0)
    found.sites["f"].tell(PolicyChanged(tiers("standard", "batch"), {"premium": "standard"}))
    found.sites["f"].arrive("after", tier=1)
    assert rank_at_the_leader(found, "before") == rank_at_the_leader(found, "after") == "batch"
    found.sites["l"].tell(PolicyChanged(tiers("standard", "batch"), {"premium": "standard"}))
    assert rank_at_the_leader(found, "gone") == "standard"
    assert rank_at_the_leader(found, "after") == "batch"


def test_a_reload_while_a_leader_gathers_ends_nothing() -> None:
    """The whole process would end with the heartbeat that brings home a tier that is no more."""
    found = joined("premium", "standard", "batch")
    found.sites["f"].arrive("a", tier=2)
    found.sites["l"].arrive("b", tier=2)
    found.gone.add("x")
    found.sites["l"].member.gateways["x"] = ""
    found.sites["l"].member.deciders.company._seen["x"] = found.now
    found.leaders.clear()
    found.beat()
    found.lead("l", epoch=2)
    leader = found.sites["l"]
    assert leader.member.led["m"].is_gathering
    leader.tell(PolicyChanged(tiers("premium", "batch"), {"standard": "batch"}))
    for _ in range(4):
        found.beat()
    assert rank_at_the_leader(found, "a") == "batch"
    assert leader.scheduler.waiting["b"].request.tier == 1
