"""Inside one user: the request whose prompt the replica holds, and what bounds its overtaking."""

import pytest

from gateway.core.fairqueue import FairQueue
from gateway.core.flows import Waiting
from gateway.core.kinds import Kind
from gateway.core.locality import GROUPS_LOOKED_AT, OVERTAKING_TOKENS_MAX, closest
from gateway.core.replica import Replica
from tests.support.script import Script, one_tier
from tests.unit.test_core_flows import waiting

WARM = (1, 2, 3)
COLD = (7, 8, 9)
OTHER = Kind(frozenset({"r"}), size=7, sequences=1, decodes=True)


def replica(*blocks: int) -> Replica:
    """A replica that was sent these blocks."""
    found = Replica("r", tiers=1, blocks=64)
    for block in blocks:
        found.cache.sent((block,))
    return found


def line(*prefixes: tuple[int, ...], **fields: object) -> list[Waiting]:
    """Requests `q0`, `q1` ... of one user with these prefixes, in the order of their arrival."""
    queue = FairQueue(one_tier(within_user="prefix"))
    found = []
    for number, prefix in enumerate(prefixes):
        each = waiting(
            f"q{number}", sequence=number, arrived_at=float(number), prefix=prefix,
            **fields,  # type: ignore[arg-type]  # free keywords
        )  # fmt: skip
        queue.push(each)
        found.append(each)
    return found


def script(**changes: object) -> Script:
    """One slot that holds the WARM prefix, and a user who is served by its cached prompts."""
    policy = one_tier(within_user="prefix", **changes)
    found = Script(policy).replica("r", slots=1)
    return found.arrive("held", prefix=WARM, prompt_tokens=192).first_token("held")


def chats(known: Script, count: int) -> Script:
    """So many requests of the warm conversation, each of 990 tokens."""
    for number in range(count):
        known.arrive(f"chat{number}", prefix=WARM, prompt_tokens=980, output_tokens_max=10)
    return known


def test_the_longest_cached_prefix_may_overtake() -> None:
    """A prompt that is held already costs the fleet a tenth."""
    first, _, third = line(COLD, WARM[:1], (2, 3))
    assert closest(first, replica(1, 2, 3)) is third
    first, second = line(COLD, WARM)
    assert closest(first, replica(1, 2, 3)) is second


def test_only_more_than_the_first_ones_own_cached_prefix_overtakes() -> None:
    """An overtaking that gains nothing is only an injustice."""
    assert closest(line(WARM, (5, 6, 7))[0], replica(1, 2, 3, 5, 6, 7)) is None
    assert closest(line(WARM, COLD)[0], replica(1, 2, 3)) is None
    assert closest(line(COLD, WARM)[0], replica()) is None
    first, second = line((1,), (5, 6))
    assert closest(first, replica(1, 5, 6)) is second


def test_the_oldest_of_a_conversation_is_the_one_that_overtakes() -> None:
    """Requests of one conversation keep their order among themselves."""
    first, second, _ = line(COLD, WARM, WARM)
    assert closest(first, replica(1, 2, 3)) is second


def test_one_conversation_alone_keeps_its_order() -> None:
    """Where all prompts begin alike there is nothing to choose."""
    assert closest(line((1,), WARM, WARM)[0], replica(1, 2, 3)) is None


def test_the_rest_of_a_broken_stream_is_no_overtaking() -> None:
    """It would use up what the warm conversation may overtake."""
    known = script().arrive("a", prefix=COLD, prompt_tokens=192)
    known.arrive("rest", is_continuation=True, prompt_tokens=192).finish("held")
    lane = known.expect_granted("rest").scheduler.waiting["a"].lane
    assert lane is not None
    assert lane.overtaken == 0


def test_of_many_conversations_the_warm_one_among_the_first_goes() -> None:
    """One look is bounded; what it has seen until then counts."""
    others = [(100 + number,) for number in range(GROUPS_LOOKED_AT)]
    first, second, *_ = line(COLD, WARM, *others)
    assert closest(first, replica(1, 2, 3)) is second
    first, *_ = line(COLD, *others, WARM)
    assert closest(first, replica(1, 2, 3)) is None


def test_requests_without_a_prefix_are_one_group_and_can_be_overtaken() -> None:
    """A client that sends no hashes must neither crash nor overtake."""
    first, second, _ = line((), WARM, ())
    assert closest(first, replica(1, 2, 3)) is second
    assert closest(line(COLD, ())[0], replica(1, 2, 3)) is None


def test_other_classes_and_other_users_are_not_overtaken() -> None:
    """Turns between users are the fair queue's affair."""
    queue = FairQueue(one_tier(within_user="prefix"))
    first = waiting("a", user="a", prefix=COLD)
    queue.push(first)
    queue.push(waiting("b", sequence=1, user="b", prefix=WARM))
    queue.push(waiting("c", sequence=2, user="a", prefix=WARM, kind=OTHER))
    assert closest(first, replica(1, 2, 3)) is None


def test_who_left_overtakes_nobody() -> None:
    """A cancelled request must not be released."""
    queue = FairQueue(one_tier(within_user="prefix"))
    line = [
        waiting(f"q{n}", sequence=n, prefix=prefix) for n, prefix in enumerate((COLD, WARM, (1,)))
    ]
    for each in line:
        queue.push(each)
    queue.remove(line[1])
    assert closest(line[0], replica(1, 2, 3)) is line[2]
    queue.remove(line[2])
    assert closest(line[0], replica(1, 2, 3)) is None
    lane = line[0].lane
    assert lane is not None
    assert lane.groups is not None
    assert set(lane.groups) == {COLD[0]}


def test_where_order_is_not_by_prefix_nobody_overtakes() -> None:
    """First come, first served means that."""
    queue = FairQueue(one_tier())
    first = waiting("a", prefix=COLD)
    queue.push(first)
    queue.push(waiting("b", sequence=1, prefix=WARM))
    assert closest(first, replica(1, 2, 3)) is None
    assert closest(waiting("alone", prefix=COLD), replica(1, 2, 3)) is None


@pytest.mark.parametrize(("short_of", "may"), [(1, True), (0, False), (-1, False)])
def test_what_may_overtake_is_bounded(short_of: int, *, may: bool) -> None:
    """One conversation must not hold back the others of its user for ever (DLPM)."""
    first, second = line(COLD, WARM)
    assert first.lane is not None
    first.lane.overtaken = OVERTAKING_TOKENS_MAX - short_of
    assert closest(first, replica(1, 2, 3)) is (second if may else None)


def test_a_choice_looks_at_a_bounded_number_of_conversations() -> None:
    """A user with a thousand conversations must not slow down everybody."""
    many = [(100 + number,) for number in range(GROUPS_LOOKED_AT - 1)]
    found = line(COLD, *many, WARM)
    assert closest(found[0], replica(1, 2, 3)) is None
    found = line(COLD, *many[1:], WARM)
    assert closest(found[0], replica(1, 2, 3)) is found[-1]


def test_a_cached_prompt_goes_before_an_older_one_of_the_same_user() -> None:
    """The user who goes on with a conversation while its batch waits."""
    known = script().arrive("old", prefix=COLD).arrive("chat", prefix=WARM).finish("held")
    known.expect_granted("chat").expect_waiting("old").finish("chat").expect_granted("old")


def test_other_users_keep_their_turns_whatever_is_cached() -> None:
    """The user without a cached prompt is next: a neighbour's cache must not take the turn."""
    known = script().arrive("chat", prefix=WARM, user="heavy").finish("held")
    known.arrive("other", user="light", prefix=COLD).arrive("more", user="heavy", prefix=WARM)
    known.finish("chat").expect_granted("other")


@pytest.mark.parametrize("cost", ["requests", "tokens", "gpu_seconds"])
def test_the_first_request_goes_after_so_much_has_overtaken_it(cost: str) -> None:
    """The old question of a user whose chat goes on and on, whatever charges are counted in."""
    known = script(cost=cost).arrive("old", prefix=COLD, output_tokens_max=10)
    chats(known, 40).finish("held")
    turns = 0
    while "old" not in known.order:
        known.serve(1)
        turns += 1
    # Each is predicted to take 990 tokens: the bound may be exceeded by the last of them.
    assert turns == pytest.approx(OVERTAKING_TOKENS_MAX / 990, abs=1.0)


def test_when_the_first_has_gone_the_next_may_be_overtaken_as_long() -> None:
    """The bound is of one request, not of the life of a user."""
    known = script(cost="tokens")
    for number, block in enumerate(COLD[:2]):
        known.arrive(f"old{number}", prefix=(block,), output_tokens_max=10)
    chats(known, 60).finish("held").serve(17)
    assert known.count_of("old") == 1
    known.serve(10)
    assert known.count_of("old") == 1
    known.serve(10)
    assert known.count_of("old") == 2


def test_the_rest_of_a_broken_stream_is_not_overtaken_by_a_cached_prompt() -> None:
    """Its client reads half an answer: it is first in its tier, whatever is cached."""
    known = script().arrive("a", prefix=COLD).arrive("chat", prefix=WARM)
    known.arrive("rest", prefix=(), is_continuation=True).finish("held").expect_granted("rest")


def test_a_cached_prompt_that_does_not_fit_overtakes_nobody() -> None:
    """The slot would go to a prompt that the engine cannot begin."""
    script = Script(one_tier(within_user="prefix")).replica("r", slots=3)
    script.arrive("held", prefix=WARM, prompt_tokens=192).first_token("held")
    script.arrive("new", prompt_tokens=7_000).arrive("full").expect_granted("new", "full")
    script.arrive("a", prefix=COLD, prompt_tokens=200)
    script.arrive("chat", prefix=WARM, prompt_tokens=2_000).expect_waiting("a", "chat")
    script.finish("held").expect_granted("a").expect_waiting("chat")
