"""What the gateway reads of a body, what it refuses, and what it leaves untouched."""

import asyncio
import json
from collections import deque
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from gateway.api.disconnect import ClientLeftError
from gateway.api.routes import CHAT, COMPLETIONS, EMBEDDINGS, Route
from gateway.api.wire import PARSE_OFF_LOOP_BYTES, Call, parse, read_body, renamed, with_priority
from gateway.errors import BadRequestError, BodyTooLargeError

WRONG: dict[str, list[object]] = {
    "model": [1, [], {}, True],
    "stream": ["true", 1, 0, []],
    "n": ["1", 1.0, True, [1], 0, -1],
    "max_tokens": ["9", 9.5, False, 10.0**30],
    "max_completion_tokens": ["9", {}],
    "service_tier": [1, ["flex"]],
    "user": [1, {"id": 1}],
}


def parsed(body: bytes | dict[str, object], route: Route = CHAT, sequences_max: int = 128) -> Call:
    """The call in a body."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return asyncio.run(parse(route, raw, sequences_max))


class Upload:
    """A client that sends a body in pieces, or goes before the last one."""

    def __init__(self, *pieces: bytes, leaves: bool = False) -> None:
        self._pieces = deque(pieces)
        self._leaves = leaves
        self.asked = 0

    async def __call__(self) -> MutableMapping[str, Any]:
        self.asked += 1
        if not self._pieces:
            return {"type": "http.disconnect"}
        piece = self._pieces.popleft()
        more = bool(self._pieces) or self._leaves
        return {"type": "http.request", "body": piece, "more_body": more}


def read(upload: Upload, length: bytes | None, bytes_max: int = 10) -> bytes:
    """The body that was read."""
    return asyncio.run(read_body(upload, length, bytes_max))


@pytest.mark.parametrize("pieces", [[b""], [b"0123456789"], [b"01", b"", b"23456789"]])
def test_a_body_up_to_the_bound_is_read_whole(pieces: list[bytes]) -> None:
    """The bound is the last size that passes."""
    body = b"".join(pieces)
    assert read(Upload(*pieces), b"%d" % len(body)) == body
    assert read(Upload(*pieces), None) == body


@pytest.mark.parametrize(
    ("pieces", "length", "asked"),
    [
        ([b"x"], b"11", 0),
        ([b"x" * 11], None, 1),
        ([b"x" * 6, b"x" * 6, b"x" * 6], None, 2),
        ([b"x" * 6, b"x" * 6, b"x" * 6], b"5", 2),
        ([b"x" * 11], b"many", 1),
        ([b"x" * 11], b"-1", 1),
    ],
)
def test_a_body_beyond_the_bound_is_refused_before_more_is_read(
    pieces: list[bytes], length: bytes | None, asked: int
) -> None:
    """A lie about the length must not fill the memory; the message names the bound."""
    upload = Upload(*pieces)
    with pytest.raises(BodyTooLargeError, match=r"bounds\.body, which is 10 bytes"):
        read(upload, length)
    assert upload.asked == asked


@pytest.mark.parametrize("pieces", [[], [b'{"model":"m"}'], [b'{"mod']])
def test_a_client_that_leaves_while_it_sends_has_sent_nothing(pieces: list[bytes]) -> None:
    """A body cut at a lucky place is valid JSON, and would be generated for nobody."""
    with pytest.raises(ClientLeftError):
        read(Upload(*pieces, leaves=True), None, bytes_max=100)


def test_what_is_not_touched_is_forwarded_byte_for_byte() -> None:
    """Spaces, order, unknown fields and big numbers belong to the engine."""
    body = b'{ "x" : 1e2, "model":"m","unknown":{"seed":12345678901234567890}, "user":"\\u00e9" }'
    assert parsed(body).body is body


def test_what_the_gateway_reads_of_a_chat() -> None:
    """Scheduling needs it, nothing else does."""
    call = parsed(
        {"model": "m", "stream": True, "n": 3, "max_tokens": 7, "service_tier": "flex", "user": "u"}
    )
    assert (call.model, call.streams, call.sequences, call.output_tokens_max) == ("m", True, 3, 7)
    assert (call.service_tier, call.user) == ("flex", "u")


@pytest.mark.parametrize("absent", [{}, {"model": None, "stream": None, "n": None, "user": None}])
def test_what_is_absent_or_null_has_the_engines_meaning(absent: dict[str, object]) -> None:
    """Many clients send every field they know, as null."""
    call = parsed({"messages": [], **absent})
    assert (call.model, call.streams, call.sequences, call.output_tokens_max) == (
        None, False, 1, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 0}, 1),
        ({"max_tokens": -5}, 1),
    ],
)
def test_the_output_limit_is_the_one_the_engine_takes(
    fields: dict[str, object], limit: int | None
) -> None:
    """Charged ahead for more than can come, a user waits for nothing."""
    assert parsed(fields).output_tokens_max == limit


def test_each_route_has_its_own_default_limit() -> None:
    """Completions stop after 16 tokens, embeddings decode nothing, whatever they say."""
    assert parsed({}, COMPLETIONS).output_tokens_max == 16
    assert parsed({"max_tokens": 9, "stream": True}, EMBEDDINGS).output_tokens_max == 0
    assert not parsed({"stream": True}, EMBEDDINGS).streams


@pytest.mark.parametrize(
    ("route", "fields", "sequences"),
    [
        (CHAT, {"n": 2, "prompt": ["a", "b"]}, 2),
        (COMPLETIONS, {"prompt": "a"}, 1),
        (COMPLETIONS, {"prompt": ["a", "b"]}, 2),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 3}, 6),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (COMPLETIONS, {"prompt": []}, 1),
        (EMBEDDINGS, {"input": ["a"] * 100}, 100),
        (EMBEDDINGS, {"input": [7] * 100}, 1),
    ],
)
def test_a_request_counts_as_the_sequences_it_makes(
    route: Route, fields: dict[str, object], sequences: int
) -> None:
    """A batch of a hundred that counts as one takes a hundred slots."""
    assert parsed(fields, route).sequences == sequences


@pytest.mark.parametrize(
    ("route", "fields", "tokens"),
    [
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 3),
        (COMPLETIONS, {"prompt": [1, 2, 3], "n": 4}, 3),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 3),
        (EMBEDDINGS, {"input": [7] * 100}, 100),
        (COMPLETIONS, {"prompt": "1 2 3"}, None),
        (COMPLETIONS, {"prompt": ["a", "b"]}, None),
        (COMPLETIONS, {"prompt": [[1, 2], "b"]}, None),
        (COMPLETIONS, {"prompt": []}, None),
        (COMPLETIONS, {"prompt": [[]]}, None),
        (COMPLETIONS, {}, None),
        (CHAT, {"prompt": [1, 2, 3]}, None),
    ],
)
def test_token_ids_are_counted_and_text_is_left_to_be_estimated(
    route: Route, fields: dict[str, object], tokens: int | None
) -> None:
    """Written as JSON an id takes as many bytes as several tokens of text would."""
    assert parsed(fields, route).prompt_tokens == tokens


@pytest.mark.parametrize(
    ("value", "session"), [("s1", "s1"), ("", ""), (None, None), (7, None), ({"a": 1}, None)]
)
def test_a_cache_key_that_is_no_text_is_no_session(value: object, session: str | None) -> None:
    """It is only a hint, and engines ignore it: nobody is refused for it."""
    assert parsed({"prompt_cache_key": value}).session == session
    assert parsed({}).session is None


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        (CHAT, {"n": 129}, "n"),
        (COMPLETIONS, {"prompt": ["a"] * 129}, "prompt"),
        (COMPLETIONS, {"prompt": ["a"] * 65, "n": 2}, "n"),
        (EMBEDDINGS, {"input": ["a"] * 129}, "input"),
        (CHAT, {"n": 2**62}, "n"),
    ],
)
def test_too_many_sequences_are_refused_by_name(
    route: Route, fields: dict[str, object], param: str
) -> None:
    """One request could otherwise fill a replica by itself."""
    with pytest.raises(BadRequestError, match=r"bounds\.max_sequences is 128") as refused:
        parsed(fields, route)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"null", b"[]", b'"{}"', b"7", b"\xff", b"\xef\xbb\xbf{}", b"{}{}",
        b'{"a":NaN}', b"{'a':1}", b'{"a":"\xc3"}', b'{"a":"\\ud800"}', b"[" * 10**6,
        b'{"a":' * 10**6,
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    """A 500 would be retried by every client, and logged as our fault."""
    with pytest.raises(BadRequestError, match="JSON"):
        parsed(body)


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in WRONG.items() for value in values],
)
def test_a_field_of_the_wrong_type_is_refused_by_name(field: str, value: object) -> None:
    """The engine would say so too, but only after the request had waited its turn."""
    with pytest.raises(BadRequestError) as refused:
        parsed({field: value})
    assert refused.value.param == field


@pytest.mark.parametrize("field", ["priority", "kv_transfer_params", "request_id"])
def test_fields_that_steer_the_engine_are_removed(field: str) -> None:
    """A client could jump the engine's queue, or collide with another's request."""
    call = parsed({"model": "m", field: 1, "messages": [{"role": "user", "content": field}]})
    assert json.loads(call.body) == {
        "model": "m",
        "messages": [{"role": "user", "content": field}],
    }


def test_a_field_cannot_hide_behind_an_escape_or_a_second_one() -> None:
    """The engine's parser would see what ours did not."""
    hidden = parsed(b'{"\\u0070riority":1,"model":"m","priority":2,"pri\\u006frity":3}')
    assert json.loads(hidden.body) == {"model": "m"}
    assert parsed(b'{"model":"a","model":"b"}').model == "b", "the last counts, as in the engine"


@pytest.mark.parametrize("depth", [100, 300, 900])
def test_a_deep_body_is_never_a_fault_of_ours(depth: int) -> None:
    """What can be read cannot always be written: the writer takes fewer levels than the reader."""
    body = b'{"priority":1,"x":' + b"[" * depth + b"]" * depth + b"}"
    untouched = parsed(body.replace(b"priority", b"harmless"))
    if depth == 100:
        assert b"priority" not in parsed(body).body
        assert b'"model":"new"' in renamed(untouched, "new")
        return
    with pytest.raises(BadRequestError, match="deep"):
        parsed(body)
    with pytest.raises(BadRequestError, match="deep"):
        renamed(untouched, "new")


def test_a_large_body_is_parsed_off_the_loop() -> None:
    """A prompt of a million tokens must not stall every other stream."""

    async def main() -> tuple[Call, int]:
        body = b'{"model":"m","x":[' + b"1," * (4 * PARSE_OFF_LOOP_BYTES) + b"1]}"
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        turning = asyncio.get_running_loop().create_task(turn())
        call = await parse(CHAT, body, 1)
        turning.cancel()
        return call, turns

    call, turns = asyncio.run(main())
    assert call.model == "m"
    assert turns > 1


def test_a_renamed_body_differs_in_its_model_only() -> None:
    """The alias is ours; all else is the client's."""
    fields = {"messages": [{"content": "model"}], "model": "alias", "temperature": 0.5, "é": "🙂"}
    assert json.loads(renamed(parsed(fields), "real")) == {**fields, "model": "real"}
    del fields["model"]
    assert json.loads(renamed(parsed(fields), "real"))["model"] == "real"


@pytest.mark.parametrize("body", [b"{}", b"{ }", b'{"a":1}', b' {\n "a" : {} }'])
def test_a_priority_is_put_in_front(body: bytes) -> None:
    """For an engine that schedules by priority the order must be ours."""
    assert json.loads(with_priority(body, -3)) == {"priority": -3, **json.loads(body)}
