"""What the gateway reads of a body, what it refuses, and what it leaves untouched."""

import asyncio
import json
from typing import Any

import orjson
import pytest

from gateway.api import wire
from gateway.api.call import Call
from gateway.api.disconnect import ClientLeftError
from gateway.api.outline import OUTLINED_BYTES
from gateway.api.routes import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    ROUTES,
    Route,
)
from gateway.api.threads import in_thread
from gateway.api.wire import (
    MEMBERS_MAX,
    parse,
    read_body,
    rewritten,
)
from gateway.errors import BadRequestError, BodyTooLargeError
from tests.support.sending import Sending

RERANK, SCORE = ROUTES["/rerank"], ROUTES["/score"]
WRONG: dict[str, list[object]] = {
    "model": [1, [], {}, True],
    "stream": ["true", 1, 0, []],
    "n": ["1", 1.0, True, [1], 0, -1],
    "max_tokens": ["9", 9.5, False, 10.0**30],
    "max_completion_tokens": ["9", {}],
    "service_tier": [1, ["flex"]],
    "user": [1, {"id": 1}],
    "max_output_tokens": ["9", 1e3],
    "previous_response_id": [7],
}


def parsed(body: bytes | dict[str, object], route: Route = CHAT, sequences_max: int = 128) -> Call:
    """The call in a body."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return asyncio.run(parse(route, raw, sequences_max))


def renamed(call: Call, model: str) -> bytes:
    """The body with another model."""
    return bytes(rewritten(call, model=model))


def with_usage(call: Call) -> bytes:
    """The body with the wish for usage."""
    return bytes(rewritten(call, asks_usage=True))


def read(upload: Sending, length: bytes | None, bytes_max: int = 10) -> bytes:
    """The body that was read."""
    return asyncio.run(read_body(upload, length, bytes_max))


@pytest.mark.parametrize("pieces", [[b""], [b"0123456789"], [b"01", b"", b"23456789"]])
def test_a_body_up_to_the_bound_is_read_whole(pieces: list[bytes]) -> None:
    """The bound is the last size that passes."""
    body = b"".join(pieces)
    assert read(Sending(*pieces), b"%d" % len(body)) == body
    assert read(Sending(*pieces), None) == body


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
    upload = Sending(*pieces)
    with pytest.raises(BodyTooLargeError, match=r"bounds\.body, which is 10 bytes"):
        read(upload, length)
    assert upload.asked == asked


@pytest.mark.parametrize(("size", "threads"), [(OUTLINED_BYTES // 2, 0), (OUTLINED_BYTES, 1)])
def test_a_large_body_is_put_together_beside_the_loop(
    size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18 MB of fresh memory take 15 ms to write, in which nobody else is served."""
    asked: list[object] = []

    async def counted(work: Any, *args: Any) -> Any:
        asked.append(work)
        return await in_thread(work, *args)

    monkeypatch.setattr(wire, "in_thread", counted)
    pieces = [b"a" * size, b"b"]
    assert read(Sending(*pieces), None, bytes_max=1 << 30) == b"".join(pieces)
    assert len(asked) == threads


@pytest.mark.parametrize("pieces", [[], [b'{"model":"m"}'], [b'{"mod']])
def test_a_client_that_leaves_while_it_sends_has_sent_nothing(pieces: list[bytes]) -> None:
    """A body cut at a lucky place is valid JSON, and would be generated for nobody."""
    with pytest.raises(ClientLeftError):
        read(Sending(*pieces, leaves=True), None, bytes_max=100)


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


@pytest.mark.parametrize(
    ("route", "limit"), [(RESPONSES, 7), (MESSAGES, 5), (CHAT, 6), (COUNT_TOKENS, 0)]
)
def test_each_route_has_its_own_name_for_the_limit(route: Route, limit: int) -> None:
    """The wrong one reserves what the engine never generates."""
    body: dict[str, object] = {
        "max_output_tokens": 7, "max_tokens": 5, "max_completion_tokens": 6,
    }  # fmt: skip
    assert parsed(body, route).output_tokens_max == limit


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
        (EMBEDDINGS, {"input": ["a"] * 1_000}, 1_000),
        (RERANK, {"query": "q", "documents": [{"text": "a"}] * 200}, 200),
        (SCORE, {"text_1": "q", "text_2": ["a"] * 200}, 200),
        (RESPONSES, {"input": ["a", "b"], "prompt": ["a", "b"]}, 1),
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
        (COUNT_TOKENS, {"messages": []}, 1),
        (ROUTES["/tokenize"], {"prompt": "a"}, 1),
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
def test_a_deep_body_is_changed_like_any_other(depth: int) -> None:
    """What can be read can be written: its values are not built."""
    deep = b"[" * depth + b"]" * depth
    assert b"priority" not in parsed(b'{"priority":1,"x":' + deep + b"}").body
    untouched = parsed(b'{"x":' + deep + b',"stream_options":{"a":' + deep + b"}}")
    assert renamed(untouched, "new").count(deep) == 2
    assert with_usage(untouched).count(deep) == 2


def test_a_renamed_body_differs_in_its_model_only() -> None:
    """The alias is ours; all else is the client's."""
    fields = {"messages": [{"content": "model"}], "model": "alias", "temperature": 0.5, "é": "🙂"}
    assert json.loads(renamed(parsed(fields), "real")) == {**fields, "model": "real"}
    del fields["model"]
    assert json.loads(renamed(parsed(fields), "real"))["model"] == "real"


@pytest.mark.parametrize("body", [b"{}", b"{ }", b'{"a":1}', b' {\n "a" : {} }'])
def test_a_priority_is_put_in_front(body: bytes) -> None:
    """For an engine that schedules by priority the order must be ours."""
    assert json.loads(bytes(rewritten(parsed(body), priority=-3))) == {
        "priority": -3,
        **json.loads(body),
    }


def test_fields_that_mean_nothing_on_a_route_are_not_looked_at() -> None:
    """The engine ignores them, and so must the gateway."""
    odd: dict[str, object] = {"stream": "x", "max_tokens": 1.5, "n": "x", "previous_response_id": 1}
    assert parsed({"input": "a", **odd}, EMBEDDINGS).sequences == 1


def test_a_response_that_follows_another_names_it() -> None:
    """Only the replica that holds the other one can serve it."""
    body: dict[str, object] = {"previous_response_id": "resp_1"}
    assert parsed(body, RESPONSES).previous_response_id == "resp_1"
    assert parsed(body, CHAT).previous_response_id is None


@pytest.mark.parametrize(
    ("options", "wants"),
    [
        (b"null", False),
        (b"{}", False),
        (b'{"include_usage":false}', False),
        (b'{"include_usage":null}', False),
        (b'{"include_usage": true }', True),
        (b'{"include_usag\\u0065":true}', True),
        (b'{"include_usage":"yes"}', True),
        (b'{"include_usage":1}', True),
        (b"7", True),
    ],
)
def test_a_client_that_asks_for_usage_is_known(options: bytes, wants: bool) -> None:
    """What it asked for must not be taken out of its stream."""
    call = parsed(b'{"stream":true,"stream_options":' + options + b"}")
    assert call.wants_usage is wants
    assert call.asks_usage is not wants
    if not wants:
        asked = json.loads(with_usage(call))
        assert asked["stream_options"] == {"include_usage": True}


def test_usage_is_asked_for_only_where_it_must_be() -> None:
    """Other routes tell it anyway, and an engine refuses the options without a stream."""
    assert not parsed({}).asks_usage
    assert parsed({"stream": True}).asks_usage
    assert parsed({"stream": True}, COMPLETIONS).asks_usage
    assert not parsed({"stream": True}, RESPONSES).asks_usage
    assert not parsed({"stream": True}, MESSAGES).asks_usage


def test_the_clients_own_stream_options_are_kept() -> None:
    """Only what had no effect without usage goes: it would now change every event."""
    body = b'{"stream_options" : {"x":1e400,"continuous_usage_stats":true,"include_usage":false}}'
    call = parsed(body)
    options = b'{"x":1e400,"include_usage":true}'
    assert with_usage(call) == b'{"stream_options":' + options + b"}"
    odd = parsed(b'{"stream_options":[1]}')
    assert json.loads(with_usage(odd)) == {"stream_options": [1]}


def test_all_changes_are_made_at_once() -> None:
    """Each alone would copy a body of megabytes."""
    body = b'{"model":"a","n":1,"stream":true}'
    call = parsed(body)
    both = b'"stream_options":{"include_usage":true},"priority":-1,'
    assert rewritten(call) is body
    assert rewritten(call, priority=-1, asks_usage=True) == b"{" + both + body[1:]
    whole = bytes(rewritten(call, model="b", priority=-1, asks_usage=True))
    assert json.loads(whole) == {**json.loads(b"{" + both + body[1:]), "model": "b"}


def test_a_body_of_too_many_members_is_not_taken_apart() -> None:
    """Each costs memory; what is forwarded as it is costs none."""
    members = b",".join(b'"%d":1' % number for number in range(MEMBERS_MAX + 1))
    call = parsed(b"{" + members + b"}")
    with pytest.raises(BadRequestError, match="members"):
        renamed(call, "new")
    prompt = orjson.dumps({"messages": [{"a": 1, "b": 2, "c": 3}] * MEMBERS_MAX, "model": "m"})
    assert json.loads(renamed(parsed(prompt), "new"))["model"] == "new"


def test_numbers_too_large_for_any_engine_are_no_fault_of_ours() -> None:
    """Python's JSON takes them for infinity, others refuse them."""
    assert parsed(b'{"prompt":[1e400]}', COMPLETIONS).sequences == 1
    assert parsed(b'{"prompt_cache_key":1e400}').session is None
    with pytest.raises(BadRequestError, match="in range") as refused:
        parsed(b'{"n":1e400}')
    assert refused.value.param == "n"
