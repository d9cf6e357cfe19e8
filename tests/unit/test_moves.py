"""A running request that should go on elsewhere: who is asked, and what the scheduler hears."""

from gateway.core.messages import MoveWanted, Outcome
from tests.support.jumping import run_jumping
from tests.support.recalling import Recalling

MOVE = MoveWanted("q1", "r")


def test_what_cannot_be_moved_stays_and_the_scheduler_is_told() -> None:
    """Nobody waits for an answer that never comes."""

    async def main() -> None:
        gated = Recalling()
        async with gated.admitted() as grant:
            grant.first_token()
            gated.decide(MOVE)
            assert gated.told == ["Arrived", "FirstToken", "RecallTooLate"]

    run_jumping(main())


def test_whoever_can_end_it_is_asked_once() -> None:
    """Its end is the answer: nothing else is told."""

    async def main() -> None:
        gated, asked = Recalling(), list[str]()

        def end() -> bool:
            asked.append("end")
            return True

        async with gated.admitted() as grant:
            grant.first_token()
            grant.movable(end)
            gated.decide(MOVE)
            assert asked == ["end"]
            grant.finish(Outcome.DONE)
            gated.decide(MOVE)
        assert asked == ["end"]
        assert gated.told == ["Arrived", "FirstToken", "Finished", "RecallTooLate"]
        await gated.check_all_free()

    run_jumping(main())


def test_one_that_declines_or_takes_its_offer_back_stays() -> None:
    """A tool call has begun meanwhile, say."""

    async def main() -> None:
        gated = Recalling()
        async with gated.admitted() as grant:
            grant.movable(lambda: False)
            gated.decide(MOVE)
            grant.movable(None)
            gated.decide(MOVE)
            assert gated.told == ["Arrived", "RecallTooLate", "RecallTooLate"]

    run_jumping(main())


def test_a_move_of_what_is_gone_is_dropped() -> None:
    """Its end was told, and that was the answer."""

    async def main() -> None:
        gated = Recalling()
        async with gated.admitted() as grant:
            grant.finish(Outcome.DONE)
        gated.decide(MOVE)
        assert gated.told == ["Arrived", "Finished"]

    run_jumping(main())
