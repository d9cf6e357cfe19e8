"""What waits changes schedulers: nothing is released on its way out, or judged on its way in."""

from dataclasses import replace

import pytest

from gateway.core.messages import Readmitted, Reason, Request, Withdrawn
from gateway.core.policy import Bounds, Policy, Room, Tenant, Tier
from tests.support.script import Script, one_tier


class Handing(Script):
    """A scheduler that hands over what waits, and is handed over what waited elsewhere."""

    def hand_over(self, *ids: str) -> None:
        """Another one decides about these."""
        for id in ids:
            self._gone(id)
        self.tell(Withdrawn(ids))

    def take_in(self, *ids: str, **fields: object) -> None:
        """Another one had let these in."""
        requests: list[Request] = [self._new(id, 10, dict(fields)) for id in ids]
        self.waiting.update(ids)
        self.tell(Readmitted(tuple(requests)))


def test_nothing_is_released_in_the_place_of_what_is_withdrawn() -> None:
    """A leader that lost its lease would grant on, beside the new one."""
    script = Handing(one_tier(reserve_after_s=1.0)).replica("r", slots=4)
    script.arrive_many("a", 4).arrive("wide", sequences=4, user="w").arrive_many("x", 9)
    script.serve(2).finish("a2").expect_waiting("wide", "x2")
    script.hand_over("wide")
    script.expect_waiting("x2").finish("a3").expect_granted("x2")


def test_what_another_scheduler_let_in_is_not_refused_here() -> None:
    """After an outage of Redis half of a line that was told to wait would be sent away."""
    policy = one_tier(bounds=Bounds(waiting_per_user=2, waiting=3))
    script = Handing(policy).replica("r", slots=1).arrive("held", user="u0")
    script.take_in(*(f"a{number}" for number in range(6)))
    assert not script.refused
    assert len(script.waiting) == 6


def test_whoever_comes_to_a_crowded_queue_takes_one_place_and_not_all() -> None:
    """The first new request after an outage would send away all that is beyond the bound."""
    policy = one_tier(bounds=Bounds(waiting=3))
    script = Handing(policy).replica("r", slots=1).arrive("held", user="u0")
    script.take_in(*(f"a{number}" for number in range(6)))
    script.arrive("new", user="v").expect_waiting("new")
    assert list(script.refused) == ["a5"]
    script.expect_refused("a5", reason=Reason.SHED)
    script.change(one_tier(bounds=Bounds(waiting=2)))
    script.arrive("newer", user="w").expect_waiting("newer")
    assert len(script.waiting) == 2


def in_tier(room: Room) -> Policy:
    """Its one tier holds so much."""
    return one_tier(tiers=(Tier(name="x", queue_limit=0, patience_s=1e6, room=room),))


@pytest.mark.parametrize(
    ("policy", "size"),
    [
        (one_tier(bounds=Bounds(waiting_bytes=350)), {"body_bytes": 100}),
        (one_tier(bounds=Bounds(waiting_tokens=350)), {"output_tokens_max": 90}),
        (in_tier(Room(requests=3)), {}),
        (in_tier(Room(body_bytes=350)), {"body_bytes": 100}),
        (in_tier(Room(tokens=350)), {"output_tokens_max": 90}),
        (one_tier(tenants={"t": Tenant(room=Room(requests=3))}), {}),
        (one_tier(tenants={"t": Tenant(room=Room(body_bytes=350))}), {"body_bytes": 100}),
        (one_tier(tenants={"t": Tenant(room=Room(tokens=350))}), {"output_tokens_max": 90}),
    ],
)
def test_whatever_a_crowded_line_is_bounded_by_a_newcomer_takes_one_place(
    policy: Policy, size: dict[str, object]
) -> None:
    """Half of a tier's line would be thrown away for the first request after an outage."""
    script = Handing(policy).replica("r", slots=1)
    script.arrive("held", user="u0", **size)  # type: ignore[arg-type]  # free keywords
    script.take_in(*(f"a{number}" for number in range(6)), **size)
    script.arrive("new", user="v", **size).expect_waiting("new")  # type: ignore[arg-type]  # free keywords
    assert list(script.refused) == ["a5"]


def test_a_crowded_line_that_has_run_dry_fills_to_its_bound_again() -> None:
    """What a line once held would be a bound that nobody set, for good."""
    script = Handing(one_tier(bounds=Bounds(waiting=3))).replica("r", slots=1)
    script.arrive("held", user="u0").take_in(*(f"a{number}" for number in range(6)))
    script.serve(6).arrive_many("b", 9, user="v")
    assert len(script.waiting) == 3


def test_a_line_stays_as_crowded_as_it_is_while_more_or_fewer_share_the_replicas() -> None:
    """The end of an outage is when the line is handed over, and when its policy changes."""
    policy = one_tier(bounds=Bounds(waiting=3), sharers=2)
    script = Handing(policy).replica("r", slots=1).arrive("held", user="u0")
    script.take_in(*(f"a{number}" for number in range(6)))
    script.change(replace(policy, sharers=1)).arrive("new", user="v").expect_waiting("new")
    assert list(script.refused) == ["a5"]


def test_a_line_that_nobody_handed_over_is_not_crowded_by_an_outage() -> None:
    """Each outage would let a line grow beyond its bound by what mended streams had in it."""
    policy = one_tier(bounds=Bounds(waiting=3))
    script = Handing(policy).replica("r", slots=1).arrive("held", user="u0").arrive_many("a", 3)
    script.arrive("rest", user="w", is_continuation=True).change(replace(policy, sharers=2))
    script.arrive("new", user="v").expect_waiting("new", "rest")
    assert list(script.refused) == ["a2", "a1"]


def test_what_comes_to_a_gateway_without_a_line_is_forwarded_or_refused() -> None:
    """It would wait where nobody is ever served from a queue, or after the end."""
    script = Handing(one_tier(release_at_once=True)).replica("r", slots=1).arrive("held")
    script.take_in("a")
    script.expect_granted("a").close().take_in("b")
    script.expect_refused("b", reason=Reason.SHUTTING_DOWN)


def test_a_tier_that_was_handed_over_has_its_headroom() -> None:
    """Its next request would find every slot taken by what ranks below it."""
    tiers = (Tier(name="a", patience_s=1e6), Tier(name="b", queue_limit=0, patience_s=1e6))
    script = Handing(one_tier(tiers=tiers, headroom_max=0.5)).replica("r", slots=2)
    script.arrive_many("low", 2, tier=1)
    script.take_in("top", tier=0)
    script.finish("low0", "top").arrive("low2", tier=1).expect_waiting("low2")


def test_a_cap_that_was_raised_meanwhile_is_heard_of() -> None:
    """What is held would wait for the old cap for as long as nobody of that user comes."""
    script = Handing(one_tier()).replica("r", slots=4)
    script.arrive_many("a", 3, user="u", caps=(("k", 1),)).expect_waiting("a1", "a2")
    script.take_in("b", user="u", caps=(("k", 4),))
    script.expect_granted("a1", "a2", "b")


def test_a_cap_that_was_raised_is_heard_of_where_its_bearer_does_not_fit() -> None:
    """Another model's free slots would wait for those of this one."""
    script = Handing(one_tier()).replica("r", slots=4).replica("x", slots=1, models=("x",))
    script.arrive("full", model="x", user="z")
    script.arrive_many("a", 3, user="u", caps=(("k", 1),)).advance(1.0)
    script.take_in("b", model="x", user="u", caps=(("k", 4),))
    script.expect_granted("a1", "a2").expect_waiting("b")
    assert script.scheduler.granted["a1"][0].granted_at == 1.0


def test_what_is_taken_in_of_a_full_holder_is_held() -> None:
    """A cap would be passed by whatever comes with a change of leaders."""
    script = Handing(one_tier()).replica("r", slots=4)
    script.take_in("a", "b", "c", caps=(("k", 1),))
    assert len(script.running) == 1
    script.serve(2).expect_order("a", "b", "c")


def test_every_pool_releases_what_it_was_handed() -> None:
    """The second model of a gateway would stand still until its next request."""
    script = Handing(one_tier()).replica("r", slots=1).replica("x", slots=1, models=("x",))
    requests = [script._new(id, 10, {"model": id[0]}) for id in ("m0", "x0", "z0", "m1")]
    script.waiting.update(each.id for each in requests)
    script.tell(Readmitted(tuple(requests)))
    script.expect_granted("m0", "x0").expect_waiting("m1")
    script.expect_refused("z0", reason=Reason.NO_REPLICA)


def test_what_does_not_wait_here_is_not_withdrawn() -> None:
    """It was granted, or has ended, before the other one heard of it."""
    script = Handing(one_tier()).replica("r", slots=1).arrive_many("a", 3)
    script.tell(Withdrawn(("a0", "unknown"))).hand_over("a1")
    script.expect_granted("a0").expect_waiting("a2")


def test_what_comes_together_goes_by_turn() -> None:
    """Whoever sent hundreds to one gateway first would be served before all others."""
    script = Handing(one_tier()).replica("r", slots=2)
    script.tell(Readmitted(()))
    requests = [script._new(id, 10, {"user": id[0]}) for id in ("a0", "a1", "a2", "b0")]
    script.waiting.update(each.id for each in requests)
    script.tell(Readmitted(tuple(requests)))
    script.expect_order("a0", "b0")


def test_what_nothing_can_serve_any_more_is_refused() -> None:
    """It would wait for a model that is gone."""
    script = Handing(one_tier()).replica("r", slots=1)
    script.take_in("a", model="other")
    script.take_in("b", only="gone")
    script.expect_refused("a", "b", reason=Reason.NO_REPLICA)


def test_behind_what_nothing_can_serve_the_others_are_taken_in() -> None:
    """One request for a replica that is gone would lose all that came with it."""
    script = Handing(one_tier()).replica("r", slots=1).arrive_many("a", 9).serve(5)
    lost, kept = script._new("lost", 10, {"only": "gone"}), script._new("kept", 10, {})
    script.waiting.update(("lost", "kept"))
    script.tell(Readmitted((lost, kept))).expect_waiting("kept")
    script.expect_refused("lost", reason=Reason.NO_REPLICA)


def test_what_a_holder_held_back_goes_on_where_its_next_is_withdrawn() -> None:
    """The rest of somebody with a cap would wait for ever once another gateway has a part."""
    caps = (("k", 1),)
    script = Handing(one_tier()).replica("r", slots=2)
    script.arrive("a", caps=caps).arrive("b", caps=caps).arrive("c", caps=caps)
    script.drain("r").finish("a").hand_over("b")
    script.drain("r", draining=False).expect_granted("c")


def test_the_pace_of_a_line_follows_how_many_share_the_replicas() -> None:
    """Right after an outage a wait seems as many times too long as there are gateways."""
    script = Handing(one_tier(sharers=3)).replica("r", slots=3)
    script.arrive_many("a", 40).serve(20)
    pool = script.scheduler.pools[0]
    alone_per_s = pool.drain_rate.per_s(script.now)
    script.change(one_tier(sharers=1))
    together_per_s = script.scheduler.pools[0].drain_rate.per_s(script.now)
    assert together_per_s > 2.9 * alone_per_s > 0.0
    script.change(one_tier(sharers=2))
    half_per_s = script.scheduler.pools[0].drain_rate.per_s(script.now)
    assert half_per_s == pytest.approx(together_per_s / 2)
