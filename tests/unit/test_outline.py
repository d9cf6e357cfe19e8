"""Bodies of megabytes: read in small steps, counted, and changed only where they must be."""

import asyncio
import json
import time
from typing import Any

import orjson
import pytest

from gateway.api.call import Call
from gateway.api.outline import OUTLINED_BYTES, SLICE_BYTES, outline_of
from gateway.api.prefix import PREFIX_BLOCKS_MAX, Prefixes
from gateway.api.prompts import COUNTED_MAX
from gateway.api.routes import CHAT, COMPLETIONS, EMBEDDINGS, Route
from gateway.api.wire import parse, rewritten
from gateway.continuation.eligible import judged
from gateway.errors import BadRequestError
from gateway.upstream.pieces import Segments

TEXT = 'It was a bright cold day in April, and the clocks were striking "thirteen".\n' * 15_000
IDS = [number * 7_919 % 128_000 for number in range(200_000)]
STEP_S_MAX = 0.02
"""Of CPU: what the machine does meanwhile is not ours."""
IMAGE = "data:image/png;base64," + "iVBORw0KGgo" * 150_000


def parsed(body: bytes | dict[str, Any], route: Route = CHAT) -> Call:
    """The call in a body that is large."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    assert len(raw) > OUTLINED_BYTES
    return asyncio.run(parse(route, raw, 1_000_000))


def prefix(call: Call) -> tuple[int, ...]:
    """The hashes of its prompt."""
    return Prefixes().of(call.fields, model="m", tenant="t")


def changed(call: Call, **changes: Any) -> Any:
    """The body that is sent with these changes, as objects; it is sent twice alike."""
    body = rewritten(call, **changes)
    assert isinstance(body, Segments)

    async def sent() -> bytes:
        return b"".join([piece async for piece in body.pieces()])

    whole = asyncio.run(sent())
    assert asyncio.run(sent()) == whole == bytes(body)
    assert len(whole) == body.length
    return json.loads(whole)


def said(*contents: object) -> list[dict[str, object]]:
    """Messages."""
    return [{"role": "user", "content": content} for content in contents]


LARGE: dict[str, dict[str, Any]] = {
    "a text": {"messages": said(TEXT)},
    "other alphabets": {"messages": said("北京🙂" * 200_000)},
    "an image": {"messages": said([{"type": "image_url", "image_url": {"url": IMAGE}}])},
    "many messages": {"messages": said(*[TEXT[:2_000]] * 1_000)},
    "many short strings": {"messages": said(*['[]{},:\\"'] * 40_000)},
    "many short messages": {"messages": said(*["ok", '}, {"', "\\"] * 16_000)},
    "many messages of parts": {
        "messages": said(
            *[[{"type": "text", "text": "a"}, {"type": "text", "text": "]}"}]] * 14_000
        )
    },
    "many calls, and a long text among them": {
        "messages": [
            *[{"role": "assistant", "tool_calls": [{"id": "1", "x": {"y": [1, [2]]}}]}] * 12_000,
            *said(TEXT),
            *said(*["ok"] * 9_000),
        ],
        "tools": [{"a": 1}] * 3,
    },
    "ids": {"prompt": IDS},
    "lists of ids": {"prompt": [IDS, IDS[:5], []]},
    "one list of ids": {"prompt": [IDS]},
    "a list of numbers among texts": {"x": ["a", IDS, [[1], [2.5e3]], "b"], "y": {"z": IDS}},
    "an object among numbers": {"x": [IDS, {}, IDS]},
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_body_is_read_and_changed_like_a_small_one(name: str) -> None:
    """What is put back in the wrong place is another user's prompt, as far as the model knows."""
    fields = {"model": "a", **LARGE[name], "stream": True, "max_tokens": 5, "user": "u"}
    call = parsed(fields)
    assert (call.model, call.streams, call.output_tokens_max, call.user) == ("a", True, 5, "u")
    assert call.body == orjson.dumps(fields)
    extra = {"priority": 3, "stream_options": {"include_usage": True}}
    assert changed(call, priority=3, asks_usage=True) == {**fields, **extra}
    all_of_it = changed(call, model="b", priority=3, asks_usage=True)
    assert all_of_it == {**fields, "model": "b", **extra}


def test_what_steers_the_engine_is_removed_from_a_large_body_too() -> None:
    """A prompt of a megabyte would be a way round."""
    fields = {"request_id": "x", "prompt": IDS, "priority": TEXT, "kv_transfer_params": {"a": TEXT}}
    call = parsed(fields | {"model": "m"}, COMPLETIONS)
    assert json.loads(call.body) == {"prompt": IDS, "model": "m"}
    assert changed(call, model="n") == {"prompt": IDS, "model": "n"}
    assert call.prompt_tokens == len(IDS)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("route", "fields", "sequences", "tokens"),
    [
        (COMPLETIONS, {"prompt": IDS}, 1, len(IDS)),
        (COMPLETIONS, {"prompt": [IDS]}, 1, len(IDS)),
        (COMPLETIONS, {"prompt": [IDS, IDS[:5], IDS[:7]], "n": 2}, 6, len(IDS) + 12),
        (COMPLETIONS, {"prompt": TEXT}, 1, None),
        (EMBEDDINGS, {"input": [TEXT[:1_500]] * 1_000}, 1_000, None),
        (EMBEDDINGS, {"input": ["a,[{", '"]}\\', ""] * 60_000}, COUNTED_MAX, None),
        (EMBEDDINGS, {"input": [TEXT, {"text": "a,b", "x": [1, [2, 3]]}, 7, IDS]}, 4, None),
        (EMBEDDINGS, {"input": [[1, 2, 3]] * 150_000}, 150_000, 450_000),
    ],
)
def test_the_prompts_of_a_large_body_are_counted(
    route: Route, fields: dict[str, Any], sequences: int, tokens: int | None, indent: int | None
) -> None:
    """A batch that counts as one takes more than its share; ids estimated by bytes too much."""
    call = parsed(json.dumps(fields, indent=indent).encode(), route)
    assert (call.sequences, call.prompt_tokens) == (sequences, tokens)


@pytest.mark.parametrize(
    "name", ["a text", "other alphabets", "an image", "ids", "one list of ids"]
)
def test_a_large_prompt_begins_as_a_smaller_one_does(name: str) -> None:
    """A conversation that grows beyond a megabyte would lose its warm replica."""
    large = parsed(LARGE[name] | {"x": TEXT})
    begun = dict(LARGE[name])
    if "messages" in begun:
        begun["messages"] = [*begun["messages"], *said("More?", "And more.")]
    longer = parsed(begun | {"y": IDS})
    assert len(prefix(large)) > 0 or name == "an image"
    assert prefix(longer)[: len(prefix(large))] == prefix(large)


@pytest.mark.parametrize(
    ("ids", "text"), [(IDS[:3_000], TEXT[:9_000]), (IDS[:3_000], "北" * 9_000)]
)
def test_what_is_cut_off_is_not_needed_for_the_hashes(ids: list[int], text: str) -> None:
    """Small and large bodies with the same beginning must meet on the same replica."""
    for field, beginning, rest in (
        ("prompt", ids, IDS),
        ("prompt", text, TEXT),
        ("messages", said(text), said(TEXT)),
    ):
        small = asyncio.run(parse(CHAT, orjson.dumps({field: beginning}), 1))
        large = parsed({field: beginning + rest, "x": TEXT})  # type: ignore[operator]  # like kinds
        assert len(prefix(small)) == 32
        assert prefix(large) == prefix(small)


def test_the_loop_goes_on_while_a_large_body_is_read() -> None:
    """A prompt of a million tokens must not stall every other stream."""

    async def main() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        turning = asyncio.get_running_loop().create_task(turn())
        body = orjson.dumps({"messages": said(TEXT, TEXT), "x": IDS})
        await parse(CHAT, body, 1)
        turning.cancel()
        return turns * SLICE_BYTES // len(body)

    assert asyncio.run(main()) >= 1, "a turn for each slice at least"


@pytest.mark.parametrize(
    "text",
    [
        b"x" * OUTLINED_BYTES + b"\xff",
        b"x" * (SLICE_BYTES - 7) + b"\xc3\x28" + b"x" * OUTLINED_BYTES,
        b"x" * OUTLINED_BYTES + b"\xe4\xba",
    ],
)
def test_a_large_body_that_is_no_utf8_is_refused(text: bytes) -> None:
    """Wherever its characters are cut."""
    with pytest.raises(BadRequestError, match="JSON"):
        parsed(b'{"a":"' + text + b'"}')


def test_characters_across_slices_are_whole() -> None:
    """A slice ends anywhere."""
    for shift in range(4):
        body = b'{"a":"' + b"x" * shift + "🙂".encode() * 400_000 + b'"}'
        assert parsed(body).body is body


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"' + b"x" * OUTLINED_BYTES,
        b'{"a":[' + b"1," * OUTLINED_BYTES,
        b'{"a":' + b"[" * OUTLINED_BYTES + b"]" * OUTLINED_BYTES + b"}",
        b'{"a":1 ' + b" " * OUTLINED_BYTES,
        b'"' * (OUTLINED_BYTES + 1),
        b"\\" * (OUTLINED_BYTES + 1),
    ],
    ids=["string", "list", "depth", "space", "quotes", "backslashes"],
)
def test_a_large_body_that_is_no_json_is_refused_or_left_to_the_engine(body: bytes) -> None:
    """A fault of ours would be a 500; only what is inside long lists is not looked at here."""
    try:
        call = parsed(body)
    except BadRequestError:
        return
    assert call.body is body


def test_nobody_can_write_a_mark() -> None:
    """What looks like one would be filled with another part of the body."""

    async def marks() -> set[bytes]:
        body = orjson.dumps({"a": TEXT, "b": IDS})
        outlines = [await outline_of(body) for _ in range(3)]
        return {outline.marked for outline in outlines if outline is not None}

    assert len(asyncio.run(marks())) == 3


@pytest.mark.parametrize("count", [20_000, 100_000])
@pytest.mark.parametrize("text", ["ok", "x" * 60])
async def test_a_history_of_very_many_messages_stops_the_loop_for_no_more_than_a_moment(
    count: int, text: str
) -> None:
    """An agent that has run for a day would make everybody else's stream stutter."""
    messages = said(*[text] * count)
    body = orjson.dumps({"model": "a", "stream": True, "messages": messages, "priority": 1})
    steps: list[float] = []
    reading = asyncio.create_task(parse(CHAT, body, 8))
    while not reading.done():
        before_s = time.thread_time()
        await asyncio.sleep(0)
        steps.append(time.thread_time() - before_s)
    call = reading.result()
    before_s = time.thread_time()
    prefixes = prefix(call)
    steps.append(time.thread_time() - before_s)
    before_s = time.thread_time()
    judged(call.body if call.outline is None else call.outline.text, sequences=1)
    steps.append(time.thread_time() - before_s)
    before_s = time.thread_time()
    rewritten(call, model="b", asks_usage=True)
    steps.append(time.thread_time() - before_s)
    assert max(steps) < STEP_S_MAX
    assert len(prefixes) == PREFIX_BLOCKS_MAX


def test_a_history_with_its_middle_taken_out_is_not_continued_elsewhere() -> None:
    """What was taken out may hold images, which nobody looked for."""
    call = parsed(LARGE["many short messages"])
    assert call.outline is not None
    assert call.outline.hides_objects
    assert len(call.outline.text) < len(call.body) * 3 // 4
    assert not parsed(LARGE["a text"]).outline.hides_objects  # type: ignore[union-attr]  # it is large


@pytest.mark.parametrize("end", ['"ok"}]}', '"ok"}', '"ok', '"ok"}}', "", '"ok"},{'])
def test_a_long_history_that_is_no_json_is_refused_or_passed_as_it_came(end: str) -> None:
    """The engine looks at what is not looked at here; nothing may be changed, nor loop for ever."""
    message = '{"role":"user","content":"ok"},'
    body = (
        '{"model":"m","messages":[' + message * 40_000 + '{"role":"user","content":' + end
    ).encode()
    try:
        call = parsed(body)
    except BadRequestError:
        return
    assert call.body == body
