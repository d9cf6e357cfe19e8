"""Where a request is warm, and what that is worth against a replica that is freer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.affinity import HOLDERS_MAX, Cache, Holders, Recent, Ties
from gateway.core.messages import PREFIX_BLOCK_TOKENS
from gateway.core.policy import Affinity, Bounds
from tests.support.parts import a_request
from tests.support.play import Play
from tests.support.script import one_tier

ALL = Affinity()
TWO_BLOCKS = 2 * PREFIX_BLOCK_TOKENS


def recent(limit: int, keys: str) -> Recent[str]:
    """What is remembered after these keys were used in this order."""
    found: Recent[str] = Recent(limit)
    for key in keys:
        found.put(key, (key,))
    return found


def test_of_more_keys_than_fit_those_not_used_lately_go() -> None:
    """The bound is what keeps a year of prompts out of the memory."""
    found = recent(4, "abcd")
    assert set(found.items()) == set("abcd")
    found.put("c", ("again",))
    found.put("e", ())
    assert found.items() == {"c": ("again",), "d": ("d",), "e": ()}
    assert found.of("c") == ("again",)
    assert found.of("a") is found.of("b") is None


@pytest.mark.parametrize("limit", [4, 5])
def test_the_half_of_the_bound_that_was_used_last_is_always_known(limit: int) -> None:
    """What everybody begins with must not be lost because others came in between."""
    used = "abacadaeafagabahai"
    for end in range(2, len(used)):
        found = recent(limit, used[:end])
        assert len(found.items()) <= len(found.old) + len(found.young) <= limit
        assert {*used[end - 2 : end]} <= set(found.items())


def test_a_lower_bound_takes_effect_at_once() -> None:
    """A new policy must be able to give memory back, and what was used last is worth most."""
    found = recent(8, "abcdefgh")
    found.resize(4)
    assert set(found.items()) == set("cdgh")
    assert set(recent(4, "abcd").items()) == set("abcd")


def cache(*prefixes: tuple[int, ...], blocks: int = 100) -> Cache:
    """What a replica holds after prompts with these prefixes went there."""
    found = Cache(blocks)
    for prefix in prefixes:
        found.sent(prefix)
    return found


def test_only_the_leading_run_of_blocks_is_cached() -> None:
    """An engine's cache begins at the first token: a hole ends it."""
    held = cache((1, 2, 3))
    found = [held.cached_tokens(each) for each in ((1, 2, 3, 4), (1, 9, 3), (2, 3), (9,), ())]
    assert found == [3 * PREFIX_BLOCK_TOKENS, PREFIX_BLOCK_TOKENS, TWO_BLOCKS, 0, 0]


def test_the_end_of_a_prompt_is_forgotten_before_its_beginning() -> None:
    """Without its first block all the others are worth nothing."""
    assert cache((1, 2, 3, 4), blocks=2).cached_tokens((1, 2, 3, 4)) == TWO_BLOCKS
    assert cache((1, 2), (3, 4), (5, 6), blocks=4).cached_tokens((1, 2)) == 0
    # One that was used again is known as a whole, though half of it was of the older generation.
    assert cache((1, 2), (3, 4), (1, 2), (5,), blocks=6).cached_tokens((1, 2)) == TWO_BLOCKS


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=30),
    limit=st.integers(2, 12),
)
def test_no_block_is_known_without_those_before_it(prompts: list[list[int]], limit: int) -> None:
    """How much is known is found by halving: with a hole in it, that would find anything."""
    held, ties = Cache(limit), Ties(Bounds(prefixes=limit))
    for number, prompt in enumerate(prompts):
        prefix = tuple(hash(tuple(prompt[: at + 1])) for at in range(len(prompt)))
        held.sent(prefix)
        ties.sent(a_request(prefix=prefix), f"r{number % 6}", has_adapters=False)
        for known in (held, ties.blocks):
            depths = [known.of(block) is not None for block in prefix]
            assert depths == sorted(depths, reverse=True)
            assert len(known.old) + len(known.young) <= limit
        assert held.cached_tokens(prefix) == PREFIX_BLOCK_TOKENS * sum(
            held.of(block) is not None for block in prefix
        )


def test_the_last_holder_of_a_key_comes_first_and_only_a_few_are_kept() -> None:
    """Its copy is the youngest; a system prompt that went everywhere is no tie to anywhere."""
    holders: Holders[str] = Holders(10)
    assert holders.of("k") is None
    for name in ("a", "b", "a"):
        holders.had("k", name)
    assert holders.of("k") == ("a", "b")
    for number in range(9):
        holders.had("k", f"r{number}")
    assert holders.of("k") == ("r8", "r7", "r6", "r5")
    assert len(holders.of("k") or ()) == HOLDERS_MAX


def test_who_had_a_key_a_while_ago_is_still_the_second_to_have_it() -> None:
    """A conversation that came back elsewhere would be cold where it spent the morning."""
    holders: Holders[str] = Holders(4)
    for key, name in (("k", "r"), ("x", "s"), ("y", "s"), ("k", "t")):
        assert holders.had(key, name)
    assert holders.of("k") == ("t", "r")


def test_a_conversation_that_goes_on_notes_only_what_is_new() -> None:
    """Its beginning is held where it was held; others that share it are not forgotten there."""
    known = Ties(Bounds())
    for prefix, name in (((1, 2), "r"), ((1, 9), "s"), ((1, 2, 3), "r")):
        known.sent(a_request(prefix=prefix), name, has_adapters=False)
    assert known.blocks.of(3) == known.blocks.of(2) == ("r",)
    assert known.blocks.of(1) == ("s", "r")
    known.sent(a_request(prefix=(1, 2, 3)), "s", has_adapters=False)
    assert known.blocks.of(3) == known.blocks.of(2) == ("s", "r")


def ties(**changes: Any) -> Ties:
    """Blocks 1 and 2, session s and adapter x are on `r`; block 1 alone on `s` as well."""
    found = Ties(Bounds(**changes))
    found.sent(a_request(prefix=(1,)), "s", has_adapters=False)
    found.sent(a_request(prefix=(1, 2), session="s", model="x"), "r", has_adapters=True)
    return found


def worths(affinity: Affinity = ALL, tokens: int = TWO_BLOCKS, **fields: Any) -> dict[str, float]:
    """What draws such a request where."""
    return ties().worths(a_request(**{"model": "z", **fields}), tokens, affinity)


def test_the_worth_of_a_prefix_is_its_share_of_the_prompt() -> None:
    """A short system prompt before a long document should not decide anything."""
    assert worths(prefix=(1, 2, 3), tokens=4 * PREFIX_BLOCK_TOKENS) == {"r": 0.5}
    assert worths(prefix=(1, 2, 3), tokens=TWO_BLOCKS) == {"r": 1.0}
    assert worths(Affinity(prefix=0.5), prefix=(1, 2), tokens=256) == {"r": 0.25}
    assert worths(prefix=(1, 9), tokens=128) == {"r": 0.5, "s": 0.5}
    assert worths(prefix=(9,)) == worths() == {}


def test_a_prompt_estimated_too_short_is_no_warmer_than_wholly_cached() -> None:
    """The estimate comes from bytes: a wrong one must not draw everybody to one replica."""
    assert worths(prefix=(1, 2), tokens=10) == {"r": 1.0}
    assert worths(prefix=(1, 2), tokens=0) == {"r": 1.0}


def test_a_session_and_an_adapter_are_worth_what_the_policy_says() -> None:
    """The largest of the reasons counts, not their sum: one cache is saved once."""
    policy = Affinity(prefix=0.4, session=0.6, adapter=0.5)
    assert worths(policy, session="s") == {"r": 0.6}
    assert worths(policy, session="other") == {}
    assert worths(policy, model="x") == {"r": 0.5}
    assert worths(policy, model="x", session="s", prefix=(1, 2)) == {"r": 0.6}
    assert worths(policy, model="x", prefix=(1, 2)) == {"r": 0.5}
    assert worths(Affinity(prefix=0.9, adapter=0.5), model="x", prefix=(1, 2)) == {"r": 0.9}


def test_a_session_makes_a_warm_prompt_no_less_warm() -> None:
    """The smaller of two reasons takes nothing from the larger."""
    policy = Affinity(prefix=0.9, session=0.6)
    assert worths(policy, session="s", prefix=(1, 2)) == {"r": 0.9}


def test_an_engine_that_was_lost_draws_nobody() -> None:
    """Its memory is gone: it would get every conversation it once had, and prefill them all."""
    found = ties()
    found.drop("r")
    assert found.blocks.items() == {1: ("s",)}
    assert found.sessions.items() == found.adapters.items() == {}


def test_an_affinity_of_zero_is_switched_off() -> None:
    """An operator whose engine has no prefix cache says so."""
    off = Affinity(prefix=0.0, session=0.0, adapter=0.0)
    assert worths(off, model="x", session="s", prefix=(1, 2)) == {}


def test_a_session_is_where_it_was_last() -> None:
    """Its history is older, and shorter, everywhere else."""
    found = ties()
    found.sent(a_request(session="s"), "t", has_adapters=False)
    assert found.worths(a_request(model="z", session="s"), 10, ALL) == {"t": 1.0}


def test_where_one_model_is_all_there_is_adapters_are_not_even_remembered() -> None:
    """What cannot tip any choice should cost no memory."""
    assert ties().adapters.of("m") is None
    assert ties().adapters.of("x") == ("r",)


def test_the_bounds_of_the_policy_hold() -> None:
    """For each kind of tie its own."""
    found = ties(prefixes=2, sessions=3)
    found.sent(a_request(prefix=(7, 8, 9)), "r", has_adapters=False)
    assert list(found.blocks.items()) == [8, 7]
    assert (found.blocks.limit, found.sessions.limit) == (2, 3)


# --- in the scheduler -------------------------------------------------------------------------


def two(**changes: Any) -> Play:
    """Two replicas of eight slots."""
    return Play(one_tier(**changes)).replica("a", slots=8).replica("b", slots=8)


PROMPT: dict[str, Any] = {"prompt_tokens": TWO_BLOCKS, "prefix": (1, 2)}


def test_a_conversation_goes_where_its_prompt_was_unless_another_is_twice_as_free() -> None:
    """A second prefill of a long history costs seconds; a crowded replica costs more."""
    script = two().arrive("filler").arrive("first", **PROMPT).start_all()
    script.expect_granted("first", on="b").finish("filler")
    # `b` has 7 of 8 slots free beside one, `a` all 8: 7 against 8, and the prompt doubles it.
    script.arrive("second", **PROMPT).expect_granted("second", on="b").first_token("second")
    # Now 6/2 against 8: more than twice as free.
    script.arrive("third", **PROMPT).expect_granted("third", on="a")


def test_a_session_stays_on_its_replica() -> None:
    """Its tools and files may be warm there."""
    script = two().arrive("first", session="s").expect_granted("first", on="a")
    script.arrive("other").expect_granted("other", on="b").finish("other")
    script.arrive("second", session="s").expect_granted("second", on="a")
    script.finish("first", "second").arrive("x", session="o").arrive("y", session="s")
    script.expect_granted("x", "y", on="a")


def test_a_session_stays_where_engines_tell_of_their_memory() -> None:
    """How free a replica is for a tier is reckoned with otherwise there."""
    script = two()
    for name in "ba":
        script.report(name, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)
    script.arrive("first", session="s").expect_granted("first", on="a").first_token("first")
    script.arrive("second", session="s").expect_granted("second", on="a")


def test_a_session_is_free_of_a_replica_that_was_lost() -> None:
    """It restarted cold: the freer one serves the conversation sooner."""
    for is_lost, chosen in ((False, "a"), (True, "b")):
        script = two(warm_up_s=0.0).arrive("first", session="s").expect_granted("first", on="a")
        if is_lost:
            script.lose("a").replica("a", slots=8)
        script.arrive("second", session="s").expect_granted("second", on=chosen)


def test_a_conversation_does_not_go_back_to_a_replica_that_is_full() -> None:
    """It would stand in the engine's own queue beside one that idles."""
    script = two(affinity=Affinity(session=9.0)).replica("a", slots=2)
    for name in "ab":
        script.report(name, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)
    script.arrive("first", session="s", excluded=frozenset({"b"}))
    script.arrive("other", excluded=frozenset({"b"})).start_all().expect_granted("other", on="a")
    script.arrive("second", session="s").expect_granted("second", on="b")


def test_a_conversation_whose_replica_was_removed_goes_elsewhere() -> None:
    """The name alone is left of it."""
    script = two().arrive("first", session="s").expect_granted("first", on="a").finish("first")
    script.remove("a").arrive("second", session="s").expect_granted("second", on="b")


def test_switched_off_affinity_leaves_the_choice_to_freeness() -> None:
    """The contrast: round and round, whatever was where."""
    off = Affinity(prefix=0.0, session=0.0, adapter=0.0)
    script = two(affinity=off).arrive("first", session="s", **PROMPT)
    script.arrive("second", session="s", **PROMPT).expect_granted("second", on="b")


def test_a_loaded_adapter_attracts_its_own() -> None:
    """Swapping adapters in and out stalls everybody on that engine."""
    models = frozenset({"m", "x"})
    for adapter, chosen in ((1.0, "b"), (0.0, "a")):
        policy = one_tier(warm_up_s=0.0, affinity=Affinity(adapter=adapter))
        script = Play(policy).find("b", models=models, slots=8)
        script.arrive("m0").arrive("x0", model="x").find("a", models=models, slots=8)
        script.finish("m0").arrive("x1", model="x").expect_granted("x1", on=chosen)


def test_ties_outlive_a_regrouping() -> None:
    """An adapter that is loaded at noon must not send every conversation to a cold replica."""
    script = two().arrive("first", session="s").expect_granted("first", on="a")
    script.arrive("other").finish("other").replica("b", slots=8, models=("m", "x"))
    script.arrive("second", session="s").expect_granted("second", on="a")


def test_prompts_that_are_cached_pass_the_prefill_gate_together() -> None:
    """Forty chats with one long system prompt are not forty prefills."""
    long: dict[str, Any] = {"prompt_tokens": 6_400, "prefix": tuple(range(100))}
    script = Play(one_tier()).replica("r", slots=16).arrive("first", **long).first_token("first")
    script.crowd("q", 15, **long)
    assert len(script.running) == 16
    assert script.known().ledger.unstarted_prompt_tokens == 0
    cold = Play(one_tier()).replica("r", slots=16).crowd("q", 16, prompt_tokens=6_400)
    assert len(cold.running) == 1


def test_a_cached_request_that_does_not_fit_overtakes_nobody() -> None:
    """The slot would stay empty for a request that cannot use it."""
    policy = one_tier(within_user="prefix")
    script = Play(policy).replica("r", slots=4)
    script.report("r", running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=4_000)
    script.arrive("run", prompt_tokens=2_500, output_tokens_max=10, prefix=(1,)).first_token("run")
    script.arrive("big", prompt_tokens=2_000, output_tokens_max=10).expect_waiting("big")
    script.arrive("warm", prompt_tokens=2_000, output_tokens_max=10, prefix=(1,))
    script.expect_waiting("warm").finish("run").expect_granted("warm")
