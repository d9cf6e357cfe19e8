"""The freest open replica of a tier, found without a look at all of them."""

from collections.abc import Callable
from random import Random

import pytest

from gateway.core.freeness import freeness
from gateway.core.invariants import check_ranking
from gateway.core.placement import Search
from gateway.core.policy import Affinity, Tier
from gateway.core.pool import Pool
from gateway.core.release import at_once
from gateway.core.replica import Replica
from gateway.core.scheduler import Scheduler
from tests.support.parts import a_replica, a_waiting, put, put_many, report
from tests.support.script import four_tiers, one_tier

NAMES = [f"r{number:02}" for number in range(12)]
SLOTS = 6


def a_fleet(slots: int | None = SLOTS) -> Pool:
    """A pool of twelve replicas under the default tiers."""
    policy = four_tiers(headroom_max=0.4, headroom_decay=0.5)
    return Pool(policy, ["m"], [a_replica(name, slots=slots, tiers=4) for name in NAMES])


def scanned(pool: Pool, tier: int, now: float) -> Replica | None:
    """What a look at each of them finds."""
    best = [
        (-freeness(each, pool.headroom, tier), each.name, each)
        for each in pool.replicas.values()
        if pool.open_tiers(each, now) > tier
    ]
    return min(best, key=lambda each: each[:2])[2] if best else None


def test_it_is_the_one_that_a_look_at_each_finds_whatever_happens() -> None:
    """A request that goes to a fuller replica waits there while another idles."""
    random, pool = Random(7), a_fleet()
    found = set()
    for step in range(1_500):
        now = step / 100
        replica = pool.replicas[random.choice(NAMES)]
        grants = list(replica.ledger.grants)
        if grants and random.random() < 0.45:
            replica.ledger.leave(random.choice(grants), now)
        elif len(grants) < SLOTS:
            put(replica, f"q{step}", at=now, output_tokens=random.randrange(1, 400),
                tier=random.randrange(4), starts=random.random() < 0.5)  # fmt: skip
        pool.touch(replica)
        if random.random() < 0.6:
            tier = random.choice([0, 0, 2, 3])
            first = pool.freest(tier, now)
            assert first is scanned(pool, tier, now)
            found.add(first and first.name)
        check_ranking(pool)
    assert len(found) > len(NAMES) // 2


def test_equals_are_taken_by_name() -> None:
    """Two schedulers that are told the same must decide the same."""
    pool = a_fleet()
    for name in (*NAMES[5:], *NAMES[:5]):
        pool.touch(pool.replicas[name])
    assert pool.freest(1, 0.0) is pool.replicas["r00"]


def test_none_is_found_where_all_are_shut() -> None:
    """The request waits then, instead of going where nothing may."""
    pool = a_fleet(slots=1)
    for replica in pool.replicas.values():
        put(replica, replica.name)
        pool.touch(replica)
    assert pool.freest(3, 0.0) is None
    pool.replicas["r07"].ledger.leave("r07", 1.0)
    pool.touch(pool.replicas["r07"])
    assert pool.freest(3, 1.0) is pool.replicas["r07"]


def test_a_gate_that_time_alone_shut_is_seen_to_be_shut() -> None:
    """The allowance of a fast moment would put one more into an engine's own queue."""
    replica, gone = a_replica(slots=1), a_replica("s", slots=1)
    gone.mark(lost=True)
    pool = Pool(one_tier(tiers=(Tier(name="x", queue_limit=4),)), ["m"], [replica, gone])
    replica.release_rate.add(0.0, 1_000.0)
    put_many(replica, 2)
    pool.touch(replica)
    assert pool.freest(0, 0.0) is replica
    assert list(pool._ranking.bridging) == ["r"]
    assert pool.freest(0, 60.0) is None
    assert not pool._ranking.bridging


def test_a_replica_whose_reports_ended_is_ranked_by_its_ledger() -> None:
    """Its last gauges would draw every request for ever."""
    pool = a_fleet()
    for number, replica in enumerate(pool.replicas.values()):
        put(replica, f"q{number}", output_tokens=500 + number)
        report(replica, running=1, waiting=0, kv_use=0.5 if number else 0.0,
               kv_capacity_tokens=10_000)  # fmt: skip
        pool.touch(replica)
    assert pool.freest(0, 0.0) is pool.replicas["r00"]
    pool.touch_all()
    assert pool.freest(0, 100.0) is scanned(pool, 0, 100.0)
    check_ranking(pool)


def test_what_changed_often_is_looked_up_once() -> None:
    """A replica that changes a thousand times a second would fill the memory."""
    pool = a_fleet()
    for step in range(200):
        assert pool.freest(0, float(step)) is pool.replicas["r00"]
        for _ in range(3):
            pool.touch(pool.replicas["r11"])
    assert pool._ranking.unranked(0) == [pool.replicas["r11"]]
    assert len(pool._ranking.unranked(3)) == len(NAMES)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_fleets_of_any_size_have_one_that_is_freest(count: int) -> None:
    """One replica of three, or of thirteen, would never be given anything."""
    names = [f"r{number:02}" for number in range(count)]
    replicas = [a_replica(name, slots=SLOTS, tiers=4) for name in reversed(names)]
    pool = Pool(four_tiers(), ["m"], replicas)
    for name in names:
        assert pool.freest(2, 0.0) is pool.replicas[name]
        put(pool.replicas[name], name)
        pool.touch(pool.replicas[name])
        check_ranking(pool)
    assert pool.freest(2, 0.0) is pool.replicas["r00"]


def test_a_pool_without_replicas_has_none() -> None:
    """A model whose last replica was removed must not fail."""
    assert Pool(four_tiers(), ["m"]).freest(0, 0.0) is None


@pytest.mark.parametrize("worth", [0.0, 0.5, 5.0])
def test_affinity_draws_as_it_does_where_each_is_looked_at(worth: float) -> None:
    """A conversation would lose its cache for the sake of a quicker look."""
    random, prefix = Random(11), tuple(range(8))
    pool = Pool(
        four_tiers(affinity=Affinity(prefix=worth)), ["m"],
        [a_replica(name, slots=SLOTS, tiers=4) for name in NAMES],
    )  # fmt: skip
    waiting = a_waiting("w", prefix=prefix, tier=1, prompt_tokens=600)
    waiting.kind = pool.kind_of(waiting.request, waiting.kv_tokens)
    went = set()
    for step in range(200):
        replica = pool.replicas[random.choice(NAMES)]
        if len(replica.ledger.grants) < SLOTS - 2:
            put(replica, f"q{step}", output_tokens=50)
        else:
            for id in list(replica.ledger.grants):
                replica.ledger.leave(id, step)
        pool.touch(replica)
        pool.ties.sent(waiting.request, random.choice(NAMES), has_adapters=False)
        state = Scheduler(pool.policy)
        state.pool_by_replica = dict.fromkeys(NAMES, pool)
        candidates = [
            each for each in pool.replicas.values() if pool.open_tiers(each, float(step)) > 1
        ]
        expected = Search(pool, candidates, float(step)).place(waiting, judged_as=1)
        assert expected is not None
        assert at_once(state, pool, waiting, now=float(step), out=[])
        assert waiting.request.id in expected.ledger.grants
        went.add(expected.name)
        expected.ledger.leave("w", float(step))
        pool.touch(expected)
        check_ranking(pool)
    assert len(went) > 2


def test_one_that_is_kept_for_another_is_passed_over() -> None:
    """The large request that a replica is emptied for would wait for ever."""
    pool = a_fleet()
    big, small = a_waiting("big"), a_waiting("small", tier=1)
    small.kind = pool.kind_of(small.request, small.kv_tokens)
    big.ticket = 1
    pool.replicas["r00"].reserved_for = big
    pool.replicas["r00"].reserved_until = 60.0
    pool.touch(pool.replicas["r00"])
    state = Scheduler(pool.policy)
    state.pool_by_replica = dict.fromkeys(NAMES, pool)
    assert pool.freest(1, 0.0) is pool.replicas["r00"]
    assert at_once(state, pool, small, now=0.0, out=[])
    assert "small" in pool.replicas["r01"].ledger.grants


def forget_change(pool: Pool) -> None:
    """A replica whose freeness changed, and whose place did not."""
    pool.replicas["r00"].touch()


def misplace(pool: Pool) -> None:
    """A freeness that is past."""
    pool._ranking._freeness[0][0] = 99.0


def misplay(pool: Pool) -> None:
    """A winner that is none."""
    pool._ranking._winners[0][1] = 3


def swap(pool: Pool) -> None:
    """Two replicas of one place."""
    pool.replicas["r00"].place = 1


def lose_bridging(pool: Pool) -> None:
    """A gate that time shuts, and nobody looks at again."""
    pool.replicas["r00"].has_queue = True


@pytest.mark.parametrize(
    ("falsify", "complaint"),
    [
        (forget_change, "r00 changed unseen"),
        (misplace, "freeness of r00"),
        (misplay, "a winner"),
        (swap, "the place of r00"),
        (lose_bridging, "time may shut r00 unseen"),
    ],
)
def test_an_order_that_is_none_any_more_is_named(
    falsify: Callable[[Pool], None], complaint: str
) -> None:
    """A judge that never complains would let the order rot."""
    pool = a_fleet()
    pool.freest(0, 0.0)
    check_ranking(pool)
    falsify(pool)
    with pytest.raises(AssertionError, match=complaint):
        check_ranking(pool)
