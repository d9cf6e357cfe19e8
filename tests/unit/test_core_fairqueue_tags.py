"""The tags of one tier's queue: who is charged what, where a flow begins, and who is heaviest."""

import pytest

from gateway.core.fairqueue import SWEEP_SLACK, FairQueue
from gateway.core.flows import Waiting
from gateway.core.kinds import Kind
from gateway.core.policy import Tenant
from tests.support.script import one_tier
from tests.unit.test_core_flows import KIND, waiting

OTHER = Kind(frozenset({"r"}), size=7, sequences=1, decodes=True)


def queue_of(*line: Waiting, **policy: object) -> FairQueue:
    """A queue in which these wait."""
    queue = FairQueue(one_tier(**policy))
    for each in line:
        queue.push(each)
    return queue


def next_of(queue: FairQueue, kind: Kind = KIND) -> str | None:
    """The id that is next in that class."""
    head = queue.head(kind)
    return None if head is None else head.request.id


def released(queue: FairQueue, turns: int = 1, kind: Kind = KIND) -> list[str]:
    """So many of that class are let go, one after the other."""
    order = []
    for _ in range(turns):
        head = queue.head(kind)
        assert head is not None
        queue.take(head)
        order.append(head.request.id)
    return order


def tags(queue: FairQueue, tenant: str = "t") -> dict[str, float]:
    """Start tags of a tenant's users."""
    return {user.name: user.start for user in queue.tenants[tenant].users.values()}


def test_an_empty_queue_has_nobody_to_serve() -> None:
    """The first event of a gateway asks it too."""
    queue = queue_of()
    assert next_of(queue) is None
    assert (queue.count, queue.active_users, queue.kv_tokens) == (0, 0, 0)
    assert queue.active_weight == queue.virtual == 0.0
    assert list(queue) == []


def test_the_counts_follow_who_comes_and_goes() -> None:
    """Bounds, places and headroom are computed from them."""
    first, second = waiting("a", user="a"), waiting("b", sequence=1, user="b")
    third = waiting("c", sequence=2, tenant="w", kind=OTHER)
    for number, each in enumerate((first, second, third), start=1):
        each.kv_tokens = 10**number
    queue = queue_of(first, second, third, tenants={"w": Tenant(weight=3.0)})
    assert (queue.count, queue.active_users, queue.kv_tokens) == (3, 3, 1_110)
    assert queue.active_weight == 4.0
    assert queue.user_count("t", "a") == queue.user_count("w", "u") == 1
    assert queue.user_count("t", "nobody") == queue.user_count("nowhere", "a") == 0
    assert {each.request.id for each in queue} == {"a", "b", "c"}
    assert set(queue.classes) == {KIND, OTHER}
    queue.take(first)
    queue.remove(third)
    assert (queue.count, queue.active_users, queue.kv_tokens) == (1, 1, 100)
    assert queue.active_weight == 1.0
    assert (first.ticket, first.lane) == (0, None)
    assert set(queue.classes) == {KIND}
    queue.remove(second)
    assert (queue.count, queue.active_users, queue.kv_tokens) == (0, 0, 0)
    assert queue.active_weight == queue.tenants["t"].active_weight == 0.0
    assert queue.classes == {}


def test_who_leaves_without_a_release_is_not_charged() -> None:
    """A request that waited out its patience has cost nobody anything."""
    first, second = waiting("a", user="a", cost=9.0), waiting("b", sequence=1, user="b")
    queue = queue_of(first, second)
    queue.remove(first)
    assert tags(queue) == {"a": 0.0, "b": 0.0}
    assert queue.tenants["t"].start == queue.virtual == 0.0


def test_a_release_charges_user_and_tenant_by_their_weights() -> None:
    """Both levels are fair only if both are charged."""
    tenants = {"t": Tenant(weight=2.0, users={"a": 4.0})}
    queue = queue_of(waiting("a", user="a", cost=8.0), tenants=tenants)
    assert released(queue) == ["a"]
    assert queue.tenants["t"].start == 4.0
    assert tags(queue) == {"a": 2.0}


def test_virtual_time_follows_the_releases_on_both_levels_and_never_goes_back() -> None:
    """It is where a newcomer begins: too low and it jumps, too high and it waits for all."""
    queue = queue_of(*(waiting(f"a{n}", sequence=n, user="a", cost=5.0) for n in range(4)))
    released(queue, 3)
    tenant = queue.tenants["t"]
    assert (queue.virtual, tenant.virtual, tenant.start) == (10.0, 10.0, 15.0)
    queue.push(waiting("n", sequence=9, user="new", cost=1.0))
    assert tags(queue) == {"a": 15.0, "new": 10.0}
    queue.push(waiting("w", sequence=10, tenant="w", cost=1.0))
    assert queue.tenants["w"].start == 10.0
    assert released(queue, 3) == ["w", "n", "a3"]
    assert tenant.virtual == 15.0


def test_classes_have_heads_of_their_own_and_one_order_among_them() -> None:
    """What one replica cannot take must not hide what it can, nor lose its rank by it."""
    queue = queue_of(
        waiting("a", user="a", cost=3.0),
        waiting("b", sequence=1, user="b", kind=OTHER),
        waiting("c", sequence=2, user="a", kind=OTHER),
    )
    assert (next_of(queue), next_of(queue, OTHER)) == ("a", "b")
    heads = [queue.head(KIND), queue.head(OTHER)]
    ranks = [queue.rank(head) for head in heads if head is not None]
    assert ranks == [(0.0, 0.0, 0.0, 0), (0.0, 0.0, 0.0, 1)]
    released(queue)
    # The charge counts in the other class as well.
    assert released(queue, 2, OTHER) == ["b", "c"]


def test_among_equal_flows_the_rank_goes_by_key_then_by_arrival() -> None:
    """Two heads of one user: the older goes first, of whatever class."""
    queue = queue_of(
        waiting("late", arrived_at=2.0), waiting("early", sequence=1, arrived_at=1.0, kind=OTHER)
    )
    late, early = queue.head(KIND), queue.head(OTHER)
    assert late is not None
    assert early is not None
    assert queue.rank(early) < queue.rank(late)


def test_the_costs_of_the_heads_are_those_of_the_moment() -> None:
    """The floor compares them with its deficit: an old figure lets the wrong request go."""
    cheap, dear = waiting("a", user="a", cost=2.0), waiting("b", sequence=1, cost=50.0, kind=OTHER)
    behind = waiting("c", sequence=2, user="a", cost=1.0)
    queue = queue_of(cheap, dear)
    assert queue.head_costs() == (2.0, 50.0)
    queue.push(behind)
    assert queue.head_costs() == (2.0, 50.0)
    queue.take(cheap)
    assert queue.head_costs() == (1.0, 50.0)
    queue.remove(dear)
    assert queue.head_costs() == (1.0, 1.0)
    queue.push(waiting("d", sequence=3, user="d", cost=7.0))
    assert queue.head_costs() == (7.0, 7.0)
    queue.settle("t", "a", -2.0)
    queue.settle("t", "d", 5.0)
    assert queue.head_costs() == (1.0, 1.0)


# --- settlements ------------------------------------------------------------------------------


def test_a_settlement_corrects_both_levels_by_the_same_difference() -> None:
    """A tenant would pay for what its user was given back."""
    tenants = {"t": Tenant(weight=2.0, users={"a": 4.0})}
    queue = queue_of(
        *(waiting(f"a{n}", sequence=n, user="a", cost=8.0) for n in range(2)), tenants=tenants
    )
    released(queue)
    queue.settle("t", "a", 8.0)
    assert (queue.tenants["t"].start, tags(queue)) == (8.0, {"a": 4.0})
    queue.settle("t", "a", -4.0)
    assert (queue.tenants["t"].start, tags(queue)) == (6.0, {"a": 3.0})
    queue.settle("t", "a", -100.0)
    assert (queue.tenants["t"].start, tags(queue)) == (0.0, {"a": 0.0})


def test_a_refunded_user_comes_forward_in_every_class() -> None:
    """Its requests of two models wait in two heaps: both must hear of the refund."""
    line = [
        waiting(f"{user}{kind.size}-{n}", sequence=n, user=user, tenant=user, cost=5.0, kind=kind)
        for n in range(2)
        for user in ("a", "b")
        for kind in (KIND, OTHER)
    ]
    queue = queue_of(*line)
    released(queue, 2)
    queue.settle("a", "a", 20.0)
    assert (next_of(queue), next_of(queue, OTHER)) == ("b0-1", "b7-0")
    queue.settle("a", "a", -23.0)
    assert (next_of(queue), next_of(queue, OTHER)) == ("a0-1", "a7-0")


def test_what_a_forgotten_flow_still_owes_is_charged_and_a_refund_is_nothing() -> None:
    """A user of one request at a time would never pay what it cost beyond the estimate."""
    queue = queue_of(waiting("a"))
    queue.settle("w", "x", -5.0)
    assert set(queue.tenants) == {"t"}
    queue.settle("w", "x", 0.0)
    assert set(queue.tenants) == {"t"}
    queue.settle("w", "x", 5.0)
    assert queue.tenants["w"].start == 5.0
    assert tags(queue, "w") == {"x": 5.0}
    queue.settle("w", "y", -2.0)
    assert queue.tenants["w"].start == 3.0
    assert tags(queue, "w") == {"x": 5.0}


def test_a_forgotten_flow_owes_also_less_than_one_and_from_now_on() -> None:
    """Costs in GPU seconds are small; and a debt behind virtual time would be none."""
    queue = queue_of()
    for number in range(3):
        queue.pass_by(waiting(f"a{number}", cost=5.0))
    queue.settle("w", "x", 0.5)
    assert queue.tenants["w"].start == 10.5
    assert tags(queue, "w") == {"x": 0.5}
    queue.settle("t", "y", 0.5)
    assert tags(queue)["y"] == 10.5


def test_a_flow_whose_tag_is_ahead_is_not_forgotten() -> None:
    """Who was served much a moment ago would come back as a newcomer, and first."""
    queue = queue_of(waiting("keep", user="keep"))
    queue.settle("t", "debtor", 50.0)
    queue.settle("w", "debtor", 50.0)
    for number in range(4 * SWEEP_SLACK):
        passing = waiting(f"p{number}", sequence=number, tenant=f"p{number}")
        queue.push(passing)
        queue.remove(passing)
    assert tags(queue)["debtor"] == tags(queue, "w")["debtor"] == 50.0
    assert len(queue.tenants) <= 2 * SWEEP_SLACK


# --- released at once -------------------------------------------------------------------------


def test_a_request_that_never_waited_is_charged_as_if_it_had() -> None:
    """Who had the empty fleet for a night has had it, also beside its own first rival."""
    queue = queue_of()
    for number in range(3):
        queue.pass_by(waiting(f"a{number}", user="a", cost=5.0))
    assert queue.count == queue.active_users == 0
    assert (queue.virtual, queue.tenants["t"].virtual) == (10.0, 10.0)
    assert tags(queue) == {"a": 15.0}
    queue.push(waiting("a", user="a"))
    queue.push(waiting("b", sequence=1, user="b"))
    assert tags(queue) == {"a": 15.0, "b": 10.0}
    assert next_of(queue) == "b"


def test_a_refund_of_what_never_waited_ends_where_it_was_let_go() -> None:
    """A failed request must not leave its user richer than before."""
    queue = queue_of()
    for number in range(3):
        queue.pass_by(waiting(f"a{number}", user="a", cost=5.0))
    queue.settle("t", "a", -100.0)
    assert tags(queue) == {"a": 5.0}


# --- leads across a regrouping ----------------------------------------------------------------


def test_a_lead_survives_a_regrouping_of_pools() -> None:
    """A replica that comes and goes would otherwise wipe out what everybody has had."""
    old = queue_of(*(waiting(f"a{n}", sequence=n, user="a", cost=5.0) for n in range(3)))
    old.push(waiting("b", sequence=9, user="b", cost=1.0))
    released(old, 3)
    assert sorted(old.debts()) == [("t", "a", 5.0, 5.0), ("t", "b", 5.0, -4.0)]
    new = queue_of(waiting("n", user="n"))
    for debt in old.debts():
        new.adopt_debt(debt)
    assert tags(new) == {"n": 0.0, "a": 5.0, "b": 0.0}
    assert new.tenants["t"].start == 5.0


def test_of_two_leads_the_larger_is_kept() -> None:
    """Two pools become one: who was ahead in either is ahead."""
    queue = queue_of()
    for lead in (7.0, 3.0):
        queue.adopt_debt(("t", "a", lead, lead + 1.0))
    assert (queue.tenants["t"].start, tags(queue)) == (7.0, {"a": 8.0})


# --- continuations ----------------------------------------------------------------------------


def test_the_rest_of_a_broken_stream_goes_before_everybody() -> None:
    """Its client reads half an answer; and among several the oldest goes first."""
    queue = queue_of(
        waiting("a", user="a"),
        waiting("c2", sequence=1, user="b", arrived_at=2.0, is_continuation=True),
        waiting("c1", sequence=2, user="c", arrived_at=1.0, is_continuation=True),
        waiting("x", sequence=3, user="a", kind=OTHER),
    )
    first = queue.head(KIND)
    assert first is not None
    other = queue.head(OTHER)
    assert other is not None
    assert queue.rank(first) < queue.rank(other)
    assert {each.request.id for each in queue} == {"a", "c1", "c2", "x"}
    assert released(queue, 3) == ["c1", "c2", "a"]
    assert queue.front == {}
    assert released(queue, 1, OTHER) == ["x"]


def test_a_continuation_is_charged_but_is_no_weight_in_the_line() -> None:
    """Nobody is shed for it, since no bound is for it; its tokens are paid all the same."""
    rest = waiting("rest", user="a", cost=5.0, is_continuation=True)
    queue = queue_of(rest, waiting("b", sequence=1, user="b", cost=1.0))
    assert queue.heaviest()[2].name == "b"
    queue.take(rest)
    assert tags(queue)["a"] == 5.0
    assert queue.tenants["t"].users["a"].cost == 0.0


def test_a_newcomer_is_not_set_back_by_the_rest_of_a_heavy_tenants_stream() -> None:
    """The light tenant that comes a moment after a power user's stream was mended."""
    queue = queue_of(waiting("a", tenant="light"), waiting("a2", sequence=1, tenant="light"))
    queue.settle("heavy", "h", 1_000.0)
    rest = waiting("rest", sequence=2, tenant="heavy", user="h", is_continuation=True)
    queue.push(rest)
    queue.take(rest)
    queue.push(waiting("new", sequence=3, tenant="new"))
    assert released(queue, 2) == ["a", "new"]


def test_a_newcomer_is_not_set_back_by_those_who_are_served_faster_elsewhere() -> None:
    """The newcomer to a slow model in the pool of a fast one would wait for hours."""
    queue = queue_of(waiting("slow0", tenant="slow"), waiting("slow1", sequence=1, tenant="slow"))
    for number in range(30):
        queue.push(waiting(f"f{number}", sequence=2 + number, tenant="fast", kind=OTHER))
    assert released(queue, 20, OTHER) == [f"f{number}" for number in range(20)]
    queue.push(waiting("new0", sequence=90, tenant="new"))
    queue.push(waiting("new1", sequence=91, tenant="new"))
    assert released(queue, 4) == ["slow0", "new0", "slow1", "new1"]
    # And who joins the fast ones does not get all that they have had before.
    queue.push(waiting("late0", sequence=92, tenant="late", kind=OTHER))
    queue.push(waiting("late1", sequence=93, tenant="late", kind=OTHER))
    assert released(queue, 4, OTHER) == ["late0", "f20", "late1", "f21"]


def test_a_new_user_is_not_set_back_by_colleagues_who_are_served_faster_elsewhere() -> None:
    """Inside a tenant the newcomer to its slow model would wait for the fast one's past."""
    queue = queue_of(waiting("slow0", user="slow"), waiting("slow1", sequence=1, user="slow"))
    for number in range(30):
        queue.push(waiting(f"f{number}", sequence=2 + number, user="fast", kind=OTHER))
    released(queue, 20, OTHER)
    queue.push(waiting("new0", sequence=90, user="new"))
    queue.push(waiting("new1", sequence=91, user="new"))
    assert released(queue, 4) == ["slow0", "new0", "slow1", "new1"]


# --- shares and the heaviest ------------------------------------------------------------------


def test_the_share_is_by_weight_among_those_who_wait() -> None:
    """A refused client is told to come back when its turn would have been."""
    tenants = {"t": Tenant(weight=3.0, users={"a": 2.0}), "w": Tenant(weight=1.0)}
    queue = queue_of(waiting("a", user="a"), waiting("b", sequence=1, user="b"), tenants=tenants)
    assert queue.share("t", "a") == pytest.approx(2 / 3)
    assert queue.share("t", "b") == pytest.approx(1 / 3)
    # Who does not wait yet is counted as if it did.
    assert queue.share("t", "new") == pytest.approx(1 / 4)
    assert queue.share("w", "new") == pytest.approx(1 / 4)
    queue.push(waiting("c", sequence=2, tenant="w", user="c"))
    assert queue.share("t", "a") == pytest.approx(3 / 4 * 2 / 3)
    assert queue.share("w", "new") == pytest.approx(1 / 4 * 1 / 2)
    assert queue_of().share("t", "a") == 1.0


def test_the_heaviest_flow_has_the_largest_waiting_cost_over_its_weights() -> None:
    """Who sent everything loses its newest, not who comes; and weights count on both levels."""
    tenants = {"t": Tenant(weight=2.0, users={"vip": 4.0})}
    queue = queue_of(
        waiting("v", user="vip", cost=40.0), waiting("a", sequence=1, user="a", cost=12.0),
        waiting("w", sequence=2, tenant="w", user="w", cost=5.5), tenants=tenants,
    )  # fmt: skip
    weight, tenant, user = queue.heaviest()
    assert (weight, tenant.name, user.name) == (6.0, "t", "a")
    queue.push(waiting("w2", sequence=3, tenant="w", user="w", cost=1.0))
    weight, tenant, user = queue.heaviest()
    assert (weight, tenant.name, user.name) == (6.5, "w", "w")


@pytest.mark.parametrize(
    "light", [Tenant(weight=0.5), Tenant(weight=1.0, users={"a": 0.5})], ids=["tenant", "user"]
)
def test_a_weight_below_one_makes_a_flow_heavier(light: Tenant) -> None:
    """Whoever was given half a share must not make others lose their requests."""
    queue = queue_of(
        waiting("a", user="a", cost=4.0), waiting("b", sequence=1, tenant="w", cost=5.0),
        tenants={"t": light},
    )  # fmt: skip
    weight, _, user = queue.heaviest()
    assert (weight, user.name) == (8.0, "a")


def test_the_heaviest_is_found_again_when_what_waited_was_served() -> None:
    """A user whose line was served must not be shed for the length it once had."""
    line = [waiting(f"a{n}", sequence=n, user="a", cost=3.0) for n in range(3)]
    others = [waiting("b", sequence=5, user="b", cost=5.0), waiting("c", sequence=6, user="c")]
    queue = queue_of(*line, *others)
    assert queue.heaviest()[2].name == "a"
    queue.take(line[0])
    queue.take(line[1])
    assert queue.heaviest()[2].name == "b"
    queue.remove(others[0])
    assert queue.heaviest()[0] == 3.0
    queue.remove(line[2])
    assert queue.heaviest()[2].name == "c"
    queue.remove(others[1])
    queue.push(waiting("d", sequence=7, user="d", cost=2.0))
    weight, _, user = queue.heaviest()
    assert (weight, user.name) == (2.0, "d")
