"""Who of several gateways does what is to be done about replicas: one of them, or nobody."""

from gateway.admin.fellows import NoFellows
from gateway.seating import SeatFellows
from tests.support.members import MODEL, Joined


def acting(joined: Joined) -> list[str]:
    """Those that would drain."""
    return [name for name, site in joined.sites.items() if SeatFellows(site.member).acts_for(MODEL)]


def test_the_leader_alone_acts_and_nobody_while_all_are_apart() -> None:
    """Three gateways without Redis would drain three replicas of three."""
    joined = Joined("a", "b", "c")
    for site in joined.sites.values():
        site.find("r1")
    assert len(acting(joined)) == 0, "nobody knows yet who leads"
    joined.lead("b", epoch=1)
    for _ in range(3):
        joined.beat()
    assert acting(joined) == ["b"]
    joined.apart()
    assert acting(joined) == []
    assert not SeatFellows(joined.sites["a"].member).acts_for("unknown")


def test_a_gateway_that_is_alone_by_its_settings_acts() -> None:
    """Most have one gateway."""
    assert NoFellows().acts_for(MODEL)
