"""Hashes of how prompts begin: equal where an engine could share its work, and nowhere else."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.fields import Fields, read_fields
from gateway.api.prefix import (
    BLOCK_BYTES,
    KINDS,
    PREFIX_BLOCKS_MAX,
    SAMPLE_CHARS,
    TAGS_MAX,
    Prefixes,
    is_wanted,
)
from gateway.api.routes import CHAT
from gateway.core.messages import PREFIX_BLOCK_TOKENS
from gateway.core.policy import DEFAULT_TIERS, Affinity, Policy

LONG = "It was a bright cold day in April. " * 1_000
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def of(fields: dict[str, object], model: str = "m", tenant: str = "t") -> tuple[int, ...]:
    """The hashes of a body."""
    return Prefixes().of(read(fields), model=model, tenant=tenant)


def read(fields: dict[str, object]) -> Fields:
    """What the gateway reads of a body with these fields."""
    return read_fields(CHAT, orjson.dumps(fields))


def chat(*contents: object, **more: object) -> dict[str, object]:
    """A conversation: the system's words, then those of user and assistant in turn."""
    roles = ["system", *["user", "assistant"] * len(contents)]
    messages = [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=False)
    ]
    return {"messages": messages, **more}


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Blocks that two prompts begin with alike."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def test_a_conversation_that_goes_on_begins_as_it_did() -> None:
    """Each turn would otherwise compute the whole conversation again on another replica."""
    first = of(chat(LONG[:1000], "Hello?"))
    second = of(chat(LONG[:1000], "Hello?", "Hello. " * 100, "And then?"))
    assert len(first) == 1000 // BLOCK_BYTES
    assert second[: len(first)] == first
    assert len(second) > len(first)


def test_prompts_are_alike_up_to_the_block_before_they_differ() -> None:
    """A hash that ignores a difference sends a request to a replica that has nothing of it."""
    one, other = LONG[:4000], LONG[:2000] + "!" + LONG[2001:4000]
    assert common(of({"prompt": one}), of({"prompt": other})) == 2000 // BLOCK_BYTES
    assert not set(of({"prompt": one})[7:]) & set(of({"prompt": other})[7:])


@pytest.mark.parametrize("change", [{"model": "n"}, {"tenant": "u"}, {"model": "mt", "tenant": ""}])
def test_nothing_is_shared_between_models_or_tenants(change: dict[str, str]) -> None:
    """Where a tenant's request is sent must not tell what another tenant has asked."""
    body = chat(LONG, LONG)
    mine = of(body)
    assert not set(mine) & set(of(body, **change))
    assert len({block >> 32 for block in mine + of(body, **change)}) == 2, "not even if forged"


def test_hashes_are_the_same_in_every_process() -> None:
    """Several gateways act as one, and a restart must not forget what is warm."""
    assert of({"prompt": LONG[:600]}, "llama-3-8b", "acme") == (
        0x58C3B550B522E866_6D78F6B0,
        0x58C3B550B522E866_6A0A6458,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_shorter_than_a_block_has_no_hash_and_what_is_long_a_bounded_number(
    kind: str,
) -> None:
    """A prompt of a megabyte must cost no more than one of some pages."""
    for text, count in (("Hello", 0), ("", 0), (LONG, PREFIX_BLOCKS_MAX)):
        assert len(of({kind: [{"role": "user", "content": text}]})) == count
        assert len(of({kind: [{"role": "user", "content": [{"text": text}] * 9}]})) == count
        assert len(of({kind: text})) == count
    assert of({kind: LONG}) == of({kind: LONG * 30})
    said = [{"role": "user", "content": LONG}]
    assert of({kind: said}) == of({kind: said * 30})
    assert of({kind: said}) == of({kind: [{"role": "user", "content": LONG * 30}]})


def test_token_ids_fill_blocks_by_their_count() -> None:
    """One block is 64 tokens, and here they are known."""
    ids = list(range(5 * PREFIX_BLOCK_TOKENS + 1))
    blocks = of({"prompt": ids})
    assert len(blocks) == 5
    assert of({"prompt": [ids]}) == blocks
    assert common(blocks, of({"prompt": [*ids[:200], 7, *ids[201:]]})) == 3
    assert len(of({"prompt": ids * 1000})) == PREFIX_BLOCKS_MAX


@pytest.mark.parametrize("ids", [[-1], [2**32], [1, "a"], [1, 2.5], [1, None], [1, [2]]])
def test_what_are_no_token_ids_have_no_hash(ids: list[object]) -> None:
    """The engine will say what is wrong; here it only must not be a 500."""
    assert of({"prompt": ids * 100}) == ()


@pytest.mark.parametrize("prompts", [[LONG, LONG], [[1] * 100, [1] * 100]])
def test_several_prompts_have_no_one_beginning(prompts: list[object]) -> None:
    """The tokens of all of them would be taken for cached where one is."""
    assert of({"prompt": prompts}) == ()
    assert of({"prompt": prompts[:1]}) == of({"prompt": prompts[0]}) != ()


def test_text_is_the_same_text_in_parts() -> None:
    """Two ways to write the same prompt; the engine renders both alike."""
    parts = [{"type": "text", "text": LONG[:300]}, {"type": "text", "text": LONG[300:900]}]
    assert of(chat(parts)) == of(chat(LONG[:900]))


@pytest.mark.parametrize("front", ["tools", "system", "instructions"])
def test_what_is_put_in_front_of_all_messages_changes_all(front: str) -> None:
    """Chat templates write the tools first, so that nothing after them is shared."""
    plain = of(chat(LONG))
    one = of(chat(LONG, **{front: [{"function": {"name": "one"}}]}))
    two = of(chat(LONG, **{front: [{"function": {"name": "two"}}]}))
    assert not set(plain) & set(one)
    assert not set(one) & set(two)


@pytest.mark.parametrize(
    "extra", [{"tool_calls": [{"id": "1"}]}, {"name": "bob"}, {"reasoning_content": "Hm."}]
)
def test_all_fields_of_a_message_count(extra: dict[str, object]) -> None:
    """Two calls of different tools are different prompts, though their text is empty."""
    before, after = {"role": "user", "content": "?"}, {"role": "user", "content": LONG}
    bare = {"role": "assistant", "content": None}
    plain = of({"messages": [before, bare, after]})
    assert not set(plain) & set(of({"messages": [before, {**bare, **extra}, after]}))


@pytest.mark.parametrize(
    ("kind", "inner"), [("image_url", "url"), ("input_audio", "data"), ("image_url", None)]
)
def test_an_image_is_told_from_another_by_a_few_of_its_bytes(kind: str, inner: str | None) -> None:
    """Hashing megabytes for each request would hold up every other."""

    def look(media: str) -> tuple[int, ...]:
        part = {"type": kind, kind: {inner: media} if inner else media}
        return of(chat([part, {"type": "text", "text": LONG}]))

    image = "data:image/png;base64," + "A" * 10_000
    middle = len(image) // 2 + SAMPLE_CHARS // 2
    assert look(image) == look(image)
    for other in (image + "A", image[:-1] + "B", image[:middle] + "B" + image[middle + 1 :]):
        assert not set(look(image)) & set(look(other))


@pytest.mark.parametrize(
    "part", [None, 1, "x", [], {}, {"type": []}, {"type": "file"}, {"type": "file", "file": {}}]
)
def test_the_hashes_end_before_what_cannot_be_read(part: object) -> None:
    """What follows it is not known to begin alike."""
    text = {"type": "text", "text": LONG[:600]}
    assert of(chat([text, part, {"type": "text", "text": LONG}], LONG)) == of(chat([text]))


@given(st.dictionaries(st.sampled_from([*KINDS, "tools", "system"]), JSON))
def test_no_body_is_a_fault_of_ours(fields: dict[str, object]) -> None:
    """A hint for placement must never be the reason that a request fails."""
    assert of(fields) == of(fields)


@given(
    st.lists(st.text(max_size=400), min_size=1, max_size=6),
    st.lists(st.text(max_size=400), max_size=3),
)
def test_what_is_added_at_the_end_changes_no_earlier_block(
    said: list[str], more: list[str]
) -> None:
    """The property that everything else here rests on."""
    before = of(chat(*said))
    assert of(chat(*said, *more))[: len(before)] == before


def test_a_prompt_nested_too_deep_to_be_read_has_no_hash() -> None:
    """The hint is worth no failure."""
    deep = b"[" * 900 + b"]" * 900
    body = b'{"tools":%b,"prompt":%b}' % (deep, orjson.dumps(LONG))
    assert len(Prefixes().of(read_fields(CHAT, body), model="m", tenant="t")) == PREFIX_BLOCKS_MAX
    for prompt in (b'[{"content":%b}]' % deep, b"[1e400]", b"null"):
        fields = read_fields(CHAT, b'{"messages":%b}' % prompt)
        assert Prefixes().of(fields, model="m", tenant="t") == ()


def test_the_tags_remembered_are_bounded() -> None:
    """Tenants come and go for years."""
    prefixes = Prefixes()
    first = prefixes.of(read({"prompt": LONG}), model="m", tenant="t0")
    for n in range(TAGS_MAX + 1):
        prefixes.of(read({"prompt": LONG[:BLOCK_BYTES]}), model="m", tenant=f"t{n}")
    assert len(prefixes._tags) <= TAGS_MAX
    assert prefixes.of(read({"prompt": LONG}), model="m", tenant="t0") == first


def test_hashes_are_made_only_where_something_is_decided_by_them() -> None:
    """Who switches prefixes off should not pay for them."""
    assert is_wanted(Policy(tiers=DEFAULT_TIERS))
    off = Affinity(prefix=0)
    assert not is_wanted(Policy(tiers=DEFAULT_TIERS, affinity=off))
    assert is_wanted(Policy(tiers=DEFAULT_TIERS, affinity=off, within_user="prefix"))
