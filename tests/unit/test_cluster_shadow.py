"""What a gateway's own scheduler decides about requests that another gateway decides about."""

from gateway.cluster.member import Member
from gateway.core.messages import Decision, Event, Recalled, RecallTooLate, WakeWanted, Woke
from gateway.core.scheduler import Scheduler
from tests.support.members import MODEL, Joined
from tests.support.script import one_tier


class Recalling(Scheduler):
    """One that takes back whatever runs whenever it is woken, and is woken after every answer."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        """As every scheduler, with a recall of its own."""
        out = super().handle(event, now)
        if isinstance(event, Woke):
            out += [Recalled(id, "r") for id in self.granted]
        if isinstance(event, RecallTooLate):
            out.append(WakeWanted(now + 7.0))
        return out


def test_a_recall_of_a_shadow_is_refused_and_what_follows_is_heard() -> None:
    """A gateway that is not woken any more lets nothing go that time alone would."""
    joined = Joined("l", "f")
    follower = joined.sites["f"]
    follower.scheduler = Recalling(one_tier())
    follower.member = Member("f", follower.scheduler, joined.post)
    for site in joined.sites.values():
        site.find("r", slots=1)
    joined.lead("l", epoch=1)
    joined.beat()
    follower.arrive("a")
    assert follower.granted == {"a": "r"}
    assert follower.member.followers[MODEL].leader == "l"
    follower.tell(Woke())
    assert follower.woke_at == joined.now + 7.0
