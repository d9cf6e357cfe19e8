"""Rewritten streams are byte for byte what an engine would have sent by itself, wherever cut."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.rewrite import Rewrite
from gateway.upstream.sse import Events
from tests.property.test_sse_property import NOISE
from tests.support.sse_reference import payloads_of
from tests.support.streams import (
    COMPACT,
    SPACED,
    TEXTS,
    framed,
    framings,
    message_events,
    pieces,
    response_events,
    text_of,
    usages,
)

SCALARS = TEXTS | st.none() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
DONE = b"data: [DONE]\n\n"
FINGERPRINT = {"system_fingerprint": "vllm-0.32.0-2ad062d9"}
HEAD = {"id": "1", "object": "chat.completion.chunk", "created": 7, "model": "real"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One event of an engine that was asked for the usage, and of one that was not."""

    asked: dict[str, Any]
    unasked: dict[str, Any] | None


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """One chunk with content."""
    delta: dict[str, Any] = {"content": draw(TEXTS)}
    if draw(st.booleans()):
        delta = {"tool_calls": [{"function": {"arguments": '{"usage": {"a": null}}'}}]}
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


@st.composite
def asked_streams(draw: st.DrawFn) -> list[Asked]:
    """A stream as vLLM, SGLang, OpenAI (`null` on every chunk) or llama.cpp tells its usage."""
    style = draw(st.sampled_from(["vllm", "sglang", "openai", "llamacpp"]))
    events = [Asked(chunk, chunk) for chunk in draw(st.lists(contents(), max_size=4))]
    end = {**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"usage": draw(usages())}
    bare = {**HEAD, "choices": [], **usage}
    match style:
        case "vllm":
            ends = [Asked(end, {**end, **FINGERPRINT})] * draw(st.integers(1, 2))
            return [*events, *ends, Asked({**bare, **FINGERPRINT}, None)]
        case "sglang":
            return [*events, Asked(end, end), Asked(bare, None)]
        case "openai":
            null = [Asked({**each.asked, "usage": None}, each.unasked) for each in events]
            marked = {**end, **FINGERPRINT}
            return [*null, Asked({**marked, "usage": None}, marked), Asked(bare, None)]
    timings = {"timings": {"predicted_n": 3}}
    whole = {**usage, **end} if draw(st.booleans()) else {**end, **usage, **timings}
    return [*events, Asked(whole, {name: whole[name] for name in whole if name != "usage"})]


def through(rewrite: Rewrite, chunks: list[bytes]) -> bytes:
    """What leaves in the end."""
    return b"".join([*(rewrite.chunk(chunk) for chunk in chunks), rewrite.rest()])


@given(st.data())
def test_a_stream_looks_as_if_nobody_had_asked_for_its_usage(data: st.DataObject) -> None:
    """Only the gateway wanted to know; the client's parser must not see a chunk it never met."""
    usual = data.draw(st.booleans())
    asked, unasked = b"", b""
    separators = data.draw(st.sampled_from([COMPACT, SPACED]))
    for event in data.draw(asked_streams()):
        framing = ("\n", " ", "") if usual else data.draw(framings())
        asked += framed(text_of(event.asked, separators), framing)
        if event.unasked is not None:
            told = _as_vllm_adds(event, separators)
            unasked += framed(told, framing)
    rewrite = Rewrite(model=None, service_tier=None, strips_usage=True)
    assert through(rewrite, pieces(data, asked + DONE)) == unasked + DONE


def _as_vllm_adds(event: Asked, separators: tuple[str, str]) -> str:
    """The fingerprint is carried over as the usage chunk has it, after a comma without a space."""
    assert event.unasked is not None
    told = text_of(event.unasked, separators)
    is_added = "system_fingerprint" not in event.asked and "system_fingerprint" in event.unasked
    return told.replace(', "system_finger', ',"system_finger') if is_added else told


@given(st.data())
def test_usage_is_stripped_and_the_alias_put_in_at_once(data: st.DataObject) -> None:
    """Both happen to the same bytes; one must not undo the other."""
    asked, expected = b"", []
    for event in data.draw(asked_streams()):
        asked += framed(json.dumps(event.asked, indent=data.draw(st.sampled_from([None, 1]))),
                        data.draw(framings()))  # fmt: skip
        if event.unasked is not None:
            expected.append({**event.unasked, "model": "alias", "service_tier": "flex"})
    rewrite = Rewrite(model="alias", service_tier="flex", strips_usage=True)
    *events, done = payloads_of(through(rewrite, pieces(data, asked + DONE)))
    assert done == b"[DONE]"
    assert [json.loads(payload) for payload in events] == expected


@pytest.mark.parametrize("kind", [Events.RESPONSE, Events.MESSAGE])
@given(data=st.data())
def test_named_events_get_alias_and_tier_inside(kind: Events, data: st.DataObject) -> None:
    """There they stand in the response or the message, and a client's metadata is its own."""
    inside = "response" if kind is Events.RESPONSE else "message"
    strategy = response_events() if kind is Events.RESPONSE else message_events()
    alias = data.draw(st.sampled_from([None, "alias", 'org\\1/"quoted" 北京']))
    tier = data.draw(st.sampled_from([None, "flex"]))
    stream, expected = b"", b""
    for name, value in data.draw(strategy):
        framing = data.draw(framings())
        stream += framed(text_of(value), framing, name)
        text = text_of(value)
        if isinstance(value.get(inside), dict):
            inner = dict(value[inside])
            if alias is not None:
                inner["model"] = alias
            if tier is not None:
                inner = inner if "service_tier" in inner else {"service_tier": None, **inner}
                inner["service_tier"] = tier
            text = text_of({**value, inside: inner})
        expected += framed(text, framing, name)
    rewrite = Rewrite(model=alias, service_tier=tier, strips_usage=True, events=kind)
    assert through(rewrite, pieces(data, stream)) == expected


@given(st.data())
def test_chunks_get_alias_and_tier_and_keep_every_other_byte(data: st.DataObject) -> None:
    """Four of five chained rewriters of another gateway lost characters at the cuts."""
    usual = data.draw(st.booleans())
    alias = data.draw(st.sampled_from([None, "alias", "org\\1/\\g<1> 北京"]))
    tier = data.draw(st.sampled_from([None, "flex"]))
    stream, expected = b"", b""
    for chunk in data.draw(st.lists(contents(), max_size=5)):
        if data.draw(st.booleans()):
            stream, expected = stream + b": keep-alive\n\n", expected + b": keep-alive\n\n"
        value = chunk
        if not usual and data.draw(st.booleans()):
            value = {**chunk, "service_tier": data.draw(st.sampled_from([None, "default"]))}
        changed = {**value, "model": alias or "real"}
        if tier is not None:
            changed = changed if "service_tier" in changed else {"service_tier": None, **changed}
            changed["service_tier"] = tier
        framing = ("\n", " ", "") if usual else data.draw(framings())
        stream += framed(text_of(value), framing)
        expected += framed(text_of(changed), framing)
    assert through(Rewrite(model=alias, service_tier=tier), pieces(data, stream)) == expected


@pytest.mark.parametrize("kind", list(Events))
@given(noise=NOISE, data=st.data())
def test_bytes_that_are_no_events_pass_unchanged(
    kind: Events, noise: bytes, data: st.DataObject
) -> None:
    """Held back and let go again, nothing is lost or doubled, and nothing fails."""
    chunks = pieces(data, noise)
    assert through(Rewrite(model=None, service_tier=None, events=kind), chunks) == noise
    both = Rewrite(model="alias", service_tier="flex", strips_usage=True, events=kind)
    left = through(both, chunks)
    if not any(_is_object(payload) for payload in payloads_of(noise)):
        assert left == noise


def _is_object(payload: bytes) -> bool:
    try:
        return isinstance(json.loads(payload), dict)
    except ValueError:
        return False


@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.sampled_from([COMPACT, SPACED]))
def test_a_plain_answer_differs_in_two_members_only(
    answer: dict[str, Any], separators: tuple[str, str]
) -> None:
    """Numbers and escapes of everything else keep the engine's own form."""
    body = f" {text_of(answer, separators)}\n"
    expected = dict(answer)
    if "model" in expected:
        expected["model"] = "alias"
    expected["service_tier"] = "flex"
    changed = Rewrite(model="alias", service_tier="flex").plain(body.encode()).decode()
    assert json.loads(changed) == expected
    same = {name: value for name, value in answer.items() if name not in ("model", "service_tier")}
    for value in same.values():
        assert text_of(value, separators) in changed
