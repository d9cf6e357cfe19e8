"""Which gateway should lead which pool: spread out, or all by one where something is counted."""

from gateway.cluster.member import SPREAD_S, Member
from gateway.cluster.messages import Left, Message
from gateway.cluster.ports import Leader, Standing
from gateway.cluster.preference import preference
from gateway.core.messages import ReplicaFound
from gateway.core.scheduler import Scheduler
from tests.support.script import one_tier

POOLS = ("a", "b", "c", "d", "e", "f")
NAMES = sorted(("g1", "g2", "g3"), key=lambda name: preference("", name))
"""In the order in which they should lead everything, where one should."""


class Desk:
    """One gateway, and what it posts."""

    def __init__(self, name: str, *, is_bundled: bool = True) -> None:
        self.is_bundled = is_bundled
        self.posted: list[Message] = []
        self.now = 100.0
        self.member = Member(
            name,
            Scheduler(one_tier()),
            lambda _, message: self.posted.append(message),
            is_bundled=lambda: self.is_bundled,
        )
        for pool in POOLS:
            found = ReplicaFound(replica=f"r{pool}", models=frozenset({pool}), slots=4)
            self.member.handle(found, self.now)

    def stands(self, **leaders: str) -> None:
        """The store says who leads; all three are there."""
        self.member.stands(
            Standing(
                gateways=dict.fromkeys(NAMES, ""),
                leaders={pool: Leader(name, 7) for pool, name in leaders.items()},
            ),
            self.now,
            asked_at=self.now,
        )

    def wants(self, after_s: float = 0.0) -> set[str]:
        """Pools that it bids for, so long after that."""
        return set(self.member.bid(self.now + after_s).wants)


def test_pools_that_nobody_leads_are_spread_over_all_gateways() -> None:
    """One that decides for all pools is one core for the whole fleet."""
    wanted = []
    for name in NAMES:
        desk = Desk(name, is_bundled=False)
        desk.stands()
        wanted.append(desk.wants())
    assert set().union(*wanted) == set(POOLS)
    assert all(wanted)
    assert sum(map(len, wanted)) == len(POOLS)


def test_where_something_is_counted_one_gateway_takes_all_pools() -> None:
    """Each leader would count for itself."""
    for at, name in enumerate(NAMES):
        desk = Desk(name)
        desk.stands()
        assert desk.wants() == (set(POOLS) if at == 0 else set())
        assert desk.wants(SPREAD_S * at + 0.01) == set(POOLS)


def test_whoever_leads_one_takes_the_others_first() -> None:
    """A new model appears while another gateway than the preferred one leads the old ones."""
    leader, other = Desk(NAMES[2]), Desk(NAMES[0])
    for desk in (leader, other):
        desk.stands(a=NAMES[2])
    assert leader.wants() == set(POOLS)
    assert other.wants(2 * SPREAD_S) == set()
    # Should that one not come, somebody must.
    assert other.wants(3 * SPREAD_S + 0.01) == set(POOLS) - {"a"}


def test_of_two_that_lead_the_same_one_gives_way_for_both() -> None:
    """An operator sets the first cap of a fleet whose pools were spread out."""
    first, second = Desk(NAMES[0], is_bundled=False), Desk(NAMES[1], is_bundled=False)
    for desk in (first, second):
        desk.stands(a=NAMES[0], b=NAMES[1])
        desk.member.beat(desk.now)
        assert desk.member.led
        desk.is_bundled = True
        desk.member.beat(desk.now)
    assert list(first.member.led) == ["a"]
    assert not second.member.led
    assert [each.pool for each in second.posted if isinstance(each, Left)] in ([], ["b"])
    assert second.member.bid(second.now).leaves == ("b",)


def test_one_that_is_gone_is_given_way_to_no_more() -> None:
    """A leader that died is followed until its lease ends: two must not wait for each other."""
    desk = Desk(NAMES[1])
    desk.member.stands(
        Standing(
            gateways={NAMES[1]: "", NAMES[2]: ""},
            leaders={"a": Leader(NAMES[0], 7), "b": Leader(NAMES[1], 7)},
        ),
        desk.now,
        asked_at=desk.now,
    )
    desk.member.beat(desk.now)
    assert list(desk.member.led) == ["b"]
