"""May a request wait at all, and when should a refused one come back?"""

import pytest

from gateway.core import admission
from gateway.core.flows import Waiting
from gateway.core.messages import Reason
from gateway.core.policy import Bounds, Policy, Tenant, Tier
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.waits import SAMPLES_MIN
from tests.support.script import Script, one_tier
from tests.unit.test_core_flows import waiting


def bounded(tiers: int = 1, **bounds: int) -> Policy:
    """A policy with these bounds and so many tiers."""
    names = [Tier(name=f"t{rank}", queue_limit=0, patience_s=1e6) for rank in range(tiers)]
    return one_tier(tiers=tuple(names), bounds=Bounds(**bounds))


def warm(script: Script) -> Script:
    """A replica of one slot that has served a request a second for a minute."""
    script.replica("r", slots=1)
    for number in range(60):
        script.arrive(f"warm{number}", user="w").serve(1)
    return script


def pool(policy: Policy | None = None) -> Pool:
    """A pool in which nothing waits yet."""
    return Pool(policy or bounded(3), ("m",), [Replica("r", tiers=3, blocks=8)])


def line(pool: Pool, name: str, count: int = 1, **fields: object) -> list[Waiting]:
    """So many requests that wait in that pool, `name0` first."""
    found = []
    for number in range(count):
        sequence = 1_000 * pool.count + number
        each = waiting(f"{name}{number}", **{"sequence": sequence, **fields})  # type: ignore[arg-type]  # free keywords
        pool.push(each)
        found.append(each)
    return found


# --- who gives way ----------------------------------------------------------------------------


def test_a_user_may_not_leave_more_than_the_bound_waiting() -> None:
    """One script in an endless loop must not fill the memory."""
    script = Script(bounded(waiting_per_user=3)).replica("r", slots=1).arrive_many("a", 5, user="a")
    script.expect_refused("a4", reason=Reason.USER_QUEUE_FULL).expect_waiting("a1", "a2", "a3")
    script.arrive("b", user="b").arrive("c", user="a", tenant="other").expect_waiting("b", "c")
    script.cancel("a1").arrive("a5", user="a").expect_waiting("a5")


def test_a_full_queue_refuses_the_heaviest_user_not_the_one_who_comes() -> None:
    """The power user must not have the others refused."""
    script = Script(bounded(waiting=4)).replica("r", slots=1).arrive_many("a", 5, user="a")
    script.arrive("b", user="b").expect_waiting("b")
    script.expect_refused("a4", reason=Reason.SHED).expect_waiting("a1", "a2", "a3")


def test_the_heaviest_users_own_arrival_is_the_one_refused() -> None:
    """Its older requests have waited longer."""
    script = Script(bounded(waiting=4)).replica("r", slots=1).arrive_many("a", 6, user="a")
    script.expect_refused("a5", reason=Reason.QUEUE_FULL).expect_waiting("a1", "a4")


def test_the_lowest_tier_gives_way_first() -> None:
    """A critical request is not refused while background work waits."""
    script = Script(bounded(tiers=2, waiting=3)).replica("r", slots=1).arrive("held")
    script.arrive_many("low", 3, tier=1, user="l").arrive("top", tier=0).expect_waiting("top")
    script.expect_refused("low2", reason=Reason.SHED)
    script.arrive_many("high", 2, tier=0, user="h").arrive("more", tier=1)
    script.expect_refused("more", reason=Reason.QUEUE_FULL)


def test_weight_counts_when_the_heaviest_is_looked_for() -> None:
    """Who has four shares may have four times as much waiting."""
    policy = one_tier(
        tenants={"t": Tenant(users={"vip": 4.0})},
        bounds=Bounds(waiting=6),
    )
    script = Script(policy).replica("r", slots=1).arrive("held", user="z")
    script.arrive_many("v", 4, user="vip").arrive_many("a", 2, user="a").arrive("b", user="b")
    script.expect_refused("a1", reason=Reason.SHED)


def test_the_heaviest_is_looked_for_in_all_pools() -> None:
    """A light user of the small model must not pay for the power user of the big one."""
    script = Script(bounded(waiting=6)).replica("r1", slots=1, models=("m",))
    script.replica("r2", slots=1, models=("x",)).arrive_many("light", 2, user="l", model="m")
    script.arrive_many("power", 6, user="p", model="x").arrive("new", user="n", model="m")
    script.expect_refused("power5", reason=Reason.SHED).expect_waiting("new", "light1")


def test_bodies_are_bounded_in_bytes_however_many_must_go() -> None:
    """A gigabyte of images must not end the process."""
    script = Script(bounded(waiting_bytes=1_000)).replica("r", slots=1).arrive("held")
    script.arrive_many("a", 9, user="a", body_bytes=100).arrive("b", user="b", body_bytes=350)
    script.expect_waiting("b").expect_refused("a8", "a7", "a6", reason=Reason.SHED)
    assert script.scheduler.room.all.body_bytes <= 1_000


def test_the_victim_is_the_newest_of_the_heaviest_flow_of_the_lowest_tier_of_all_pools() -> None:
    """What has waited longest is the last to be thrown away."""
    one, other = pool(), pool()
    line(one, "top", 9, tier=0)
    line(one, "a", 2, tier=1, user="a")
    b = line(other, "b", 3, tier=1, user="b")
    assert admission.victim([one, other]) is b[-1]
    assert admission.victim([other, one]) is b[-1]
    c = line(one, "c", 4, tier=1, user="c")
    assert admission.victim([one, other]) is c[-1]
    assert admission.victim([one, other], tier=1) is c[-1]
    top = admission.victim([one, other], tier=0)
    assert top is not None
    assert top.request.id == "top8"


def test_of_equally_heavy_flows_that_of_the_first_pool_gives_way() -> None:
    """A tie must be decided alike each time, or two runs of one seed differ."""
    one, other = pool(), pool()
    a, b = line(one, "a", 2, user="a"), line(other, "b", 2, user="b")
    assert admission.victim([one, other]) is a[-1]
    assert admission.victim([other, one]) is b[-1]


def test_the_newest_of_a_flow_is_found_in_all_its_classes() -> None:
    """Large requests must not be spared for standing in another line."""
    known = pool()
    first, large = line(known, "a")[0], waiting("large", sequence=5, tier=0)
    large.kind = known.kind_of(large.request, 9_000)
    known.push(large)
    assert first.lane is not None
    assert first.lane.flow is not None
    assert admission.newest(first.lane.flow) is large
    line(known, "b", sequence=7)
    assert admission.newest(first.lane.flow) is not large


def test_the_rest_of_a_broken_stream_never_gives_way() -> None:
    """No bound is for it: its client reads half an answer."""
    known = pool()
    line(known, "rest", is_continuation=True)
    assert admission.victim([known]) is None
    assert admission.victim([known], tier=0) is None
    assert admission.victim_of_tenant([known], "t") is None
    a = line(known, "a", user="a")
    assert admission.victim([known]) is a[0]
    assert admission.victim_of_tenant([known], "t") is a[0]


def test_the_rest_of_a_stream_in_the_lowest_tier_does_not_lift_the_bounds_above_it() -> None:
    """The process: one mended background stream would let everybody fill the memory."""
    known = pool()
    a = line(known, "a", 3, tier=0, user="a")
    line(known, "rest", tier=2, is_continuation=True)
    assert admission.victim([known]) is a[-1]
    assert admission.victim_of_tenant([known], "t") is a[-1]


def test_a_tenants_victim_is_its_own_and_of_its_lowest_tier() -> None:
    """A tenant over its room must not have the requests of others thrown away."""
    tenants = {"t": Tenant(users={"vip": 4.0})}
    one = pool(one_tier(tiers=bounded(3).tiers, tenants=tenants))
    other = pool()
    line(one, "w", 9, tenant="w", tier=2)
    line(one, "high", 9, tier=0)
    vip = line(one, "vip", 7, tier=1, user="vip")
    a = line(one, "a", 2, tier=1, user="a")
    assert admission.victim_of_tenant([one, other], "t") is a[-1]
    line(one, "vip2", 2, tier=1, user="vip")
    found = admission.victim_of_tenant([one, other], "t")
    assert found is not None
    assert found.request.user == "vip"
    assert vip[0].ticket
    low = line(other, "low", 1, tier=2)
    assert admission.victim_of_tenant([one, other], "t") is low[0]


def test_of_equally_heavy_users_of_a_tenant_the_first_gives_way() -> None:
    """Equal users are the usual case, and two flows have no order among themselves."""
    known = pool()
    a, _ = line(known, "a", 2, user="a"), line(known, "b", 2, user="b")
    assert admission.victim_of_tenant([known], "t") is a[-1]


# --- when to come back ------------------------------------------------------------------------


@pytest.mark.parametrize(("queued", "at_most"), [(4, 6), (200, 30)])
def test_retry_after_follows_the_line_and_the_rate(queued: int, at_most: int) -> None:
    """A client that is told too little comes back in vain; too much, and slots stay empty."""
    script = warm(Script(bounded(waiting_per_user=queued)))
    script.arrive_many("a", queued + 1, user="a").arrive("late", user="a")
    after_s = script.refused["late"].retry_after_s
    assert after_s is not None
    assert min(queued, 25) <= after_s <= at_most


def test_retry_after_falls_as_the_line_drains() -> None:
    """The same user refused later is told to come back sooner."""
    script = warm(Script(bounded())).arrive_many("a", 25, user="a")
    told: list[float] = []
    for number in range(6):
        script.serve(4).arrive(f"hasty{number}", user="a", patience_s=0.0).advance(0.0)
        refused = script.refused[f"hasty{number}"]
        # Once the waits are known it is refused on arrival rather than after no time at all.
        assert refused.reason in (Reason.PATIENCE_SPENT, Reason.WAIT_TOO_LONG)
        told.append(refused.retry_after_s or 0.0)
    assert told == sorted(told, reverse=True)
    assert 1.0 <= told[-1] < told[0] <= 30.0


def test_retry_after_is_the_maximum_while_nothing_is_known() -> None:
    """Nothing has been served yet: any smaller figure would be invented."""
    script = Script().arrive("a").expect_refused("a", reason=Reason.NO_REPLICA)
    assert script.refused["a"].retry_after_s == 30.0


@pytest.mark.parametrize(
    ("in_line", "bounds", "after_s"),
    [
        (1, Bounds(), 1.0),
        (40, Bounds(), 4.0),
        (41, Bounds(), 5.0),
        (10_000, Bounds(), 30.0),
        (10_000, Bounds(retry_after_s_max=7.0), 7.0),
    ],
)
def test_retry_after_is_whole_seconds_between_one_and_the_bound(
    in_line: int, bounds: Bounds, after_s: float
) -> None:
    """HTTP knows whole seconds; rounded down, everybody comes back too soon."""
    known = pool()
    known.drain_rate.begin(0.0)
    known.drain_rate.add(0.0, 10.0)
    assert admission.retry_after_s(known, in_line, 0.0, bounds) == after_s
    assert admission.retry_after_s(None, in_line, 0.0, bounds) == bounds.retry_after_s_max


def test_the_expected_wait_is_the_place_over_the_drain_rate() -> None:
    """What a client reads in its stream; nothing, rather than a guess, while nothing drained."""
    known = pool()
    assert admission.wait_s(known, 5, 0.0) is None
    known.drain_rate.begin(0.0)
    known.drain_rate.add(0.0, 2.0)
    assert admission.wait_s(known, 5, 0.0) == pytest.approx(2.5)


# --- the place in the line --------------------------------------------------------------------


def test_the_place_in_the_line_counts_the_turns_of_the_others() -> None:
    """What a waiting client reads in its stream."""
    script = Script(bounded(tiers=2)).replica("r", slots=1).arrive("held", user="z")
    script.arrive_many("a", 5, user="a").arrive_many("b", 5, user="b").arrive("low", tier=1)
    script.scheduler.pools[0].drain_rate.add(script.now)
    found = {id: script.scheduler.place_of(id, script.now) for id in script.waiting}
    places = {id: place[0] for id, place in found.items() if place is not None}
    assert [places[id] for id in ("a0", "a1", "b1", "a4", "low")] == [2, 4, 4, 10, 11]
    waits_s = {id: place[1] or 0.0 for id, place in found.items() if place is not None}
    assert 0.0 < waits_s["a0"] < waits_s["a1"] < waits_s["low"]
    assert script.scheduler.place_of("held", script.now) is None
    assert script.scheduler.place_of("unknown", script.now) is None


def test_the_place_is_by_share() -> None:
    """The tenant that pays for three shares is three times as near as its neighbour."""
    tenants = {"big": Tenant(weight=3.0)}
    known = pool(one_tier(tiers=bounded(3).tiers, tenants=tenants))
    line(known, "b", 20, tier=1, tenant="big")
    line(known, "s", 20, tier=1, tenant="small")
    assert admission.place(known, 1, "big", "u", ahead=5) == 8
    assert admission.place(known, 1, "small", "u", ahead=5) == 24
    # Nobody is further back than the whole line, or than its own line.
    assert admission.place(known, 1, "small", "u", ahead=19) == 40
    assert admission.place(known, 1, "small", "u", ahead=60) == 61
    line(known, "top", 7, tier=0)
    line(known, "low", 7, tier=2)
    assert admission.place(known, 1, "big", "u", ahead=5) == 7 + 8
    assert admission.place(known, 0, "new", "u", ahead=0) == 2
    assert admission.place(pool(), 0, "new", "u", ahead=0) == 1


def test_the_place_counts_those_of_its_user_that_go_before_it() -> None:
    """By arrival, ties by number, in all its classes: not by who asked last."""
    known = pool()
    old, new = line(known, "old", arrived_at=1.0)[0], line(known, "new", arrived_at=3.0)[0]
    retry = line(known, "retry", arrived_at=2.0)[0]
    assert [admission.position(known, each) for each in (old, retry, new)] == [1, 2, 3]
    large = waiting("large", sequence=99, arrived_at=2.5)
    large.kind = known.kind_of(large.request, 9_000)
    known.push(large)
    assert [admission.position(known, each) for each in (old, retry, large, new)] == [1, 2, 3, 4]


def test_requests_of_one_instant_have_places_of_their_own() -> None:
    """A batch that is sent at once: its first must not be told that it is the last."""
    known = pool()
    batch = line(known, "a", 3, arrived_at=1.0)
    assert [admission.position(known, each) for each in batch] == [1, 2, 3]


# --- refused early ----------------------------------------------------------------------------


def hopeless(*, samples: int, ratio: float = 1.0, deadline: float = 4.0, **fields: object) -> bool:
    """Whether the fifth in line is refused, one going each second, after such waits."""
    known = pool()
    known.drain_rate.begin(0.0)
    known.drain_rate.add(0.0)
    for _ in range(samples):
        known.forecasts[0].add(10.0, 10.0 * ratio)
    line(known, "a", 4)
    newcomer = line(known, "b", **fields)[0]  # type: ignore[arg-type]  # free keywords
    newcomer.deadline = deadline
    found = admission.is_hopeless(known, newcomer, 0.0)
    assert newcomer.expected_s == pytest.approx(5.0)
    return found


def test_who_will_most_likely_not_be_served_in_time_is_refused_at_once() -> None:
    """A client with somewhere else to go must not wait half a minute for a refusal."""
    assert hopeless(samples=SAMPLES_MIN)
    assert not hopeless(samples=SAMPLES_MIN, deadline=6.5)
    assert hopeless(samples=SAMPLES_MIN, ratio=2.0, deadline=8.0)
    assert not hopeless(samples=SAMPLES_MIN, ratio=0.5, deadline=4.0)


def test_nobody_is_refused_early_on_a_few_samples() -> None:
    """A guess must not turn customers away."""
    assert not hopeless(samples=0)
    assert not hopeless(samples=SAMPLES_MIN - 1)


def test_the_rest_of_a_broken_stream_is_never_hopeless() -> None:
    """It goes first in its tier: the length of the line says nothing of it."""
    assert not hopeless(samples=SAMPLES_MIN, is_continuation=True)


def test_before_anything_was_served_nobody_is_hopeless() -> None:
    """The first minute of a fresh gateway."""
    known = pool()
    for _ in range(SAMPLES_MIN):
        known.forecasts[0].add(10.0, 10.0)
    newcomer = line(known, "a")[0]
    newcomer.deadline = 0.0
    assert not admission.is_hopeless(known, newcomer, 0.0)
    assert newcomer.expected_s is None
