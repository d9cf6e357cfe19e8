"""What waits changes schedulers: nothing is released on its way out, or judged on its way in."""

from gateway.core.messages import Readmitted, Reason, Request, Withdrawn
from gateway.core.policy import Bounds
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
