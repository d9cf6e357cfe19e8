"""What a leader believes of the others' requests, and what it asks for again."""

from gateway.core.messages import Bounced, Finished, Outcome
from tests.support.members import Joined


def test_what_comes_back_from_a_replica_the_leader_never_found_is_not_lost() -> None:
    """A client waits for ever: nobody has its request, and nobody's patience ends."""
    joined = Joined("f", "old", "new")
    for name in ("f", "old"):
        joined.sites[name].find("r1")
        joined.sites[name].find("r2")
    joined.sites["new"].find("r1")
    joined.lead("old", epoch=1)
    joined.beat()
    joined.sites["f"].arrive("a", only="r2")
    joined.sites["f"].arrive("b", only="r1")
    assert joined.sites["f"].granted == {"a": "r2", "b": "r1"}
    joined.gone.add("old")
    joined.lead("new", epoch=2)
    joined.beat()
    joined.beat()
    del joined.sites["f"].granted["a"]
    joined.sites["new"].find("r2")
    joined.sites["f"].tell(Bounced("a"))
    joined.beat()
    joined.beat()
    joined.beat()
    assert joined.sites["f"].granted == {"a": "r2", "b": "r1"}
    joined.sites["f"].tell(Finished("a", Outcome.DONE))
    joined.sites["f"].tell(Finished("b", Outcome.DONE))
    assert not joined.sites["new"].scheduler.granted
