"""What an engine is sent: an allow-list of headers, and the client's own bytes."""

import asyncio
import json

import pytest

from gateway.api.auth import Asked, headers_of
from gateway.api.form import read_form
from gateway.api.isolation import Salt
from gateway.api.life import Life
from gateway.api.outgoing import FORWARDED, FORWARDED_BYTES_MAX, body, forwarded, header_lines
from gateway.api.routes import CHAT, TRANSCRIPTIONS
from gateway.api.upload import RenamedUpload, Upload
from gateway.api.wire import parse
from tests.support.sending import FORM_TYPE, Sending, form, part


def life(content: bytes = b'{"model":"m"}', model: str = "m") -> Life:
    """A chat request for an engine that calls the model `model`."""
    made = Life(request_id="abc", route=CHAT, began_at=0.0)
    made.call = asyncio.run(parse(CHAT, content, 8))
    made.model = model
    made.asked = Asked("acme", "alice", 0, None)
    made.next_request(frozenset())
    return made


async def upload_life(model: str) -> Life:
    """A form for an engine that calls the model `model`."""
    made = Life(request_id="abc", route=TRANSCRIPTIONS, began_at=0.0)
    content = form(part("model", b"m"), part("file", b"RIFF", filename="a.wav"))
    made.call = await read_form(
        TRANSCRIPTIONS, Sending(content), content_type=FORM_TYPE, bytes_max=1 << 20
    )
    made.model = model
    made.asked = Asked("acme", "alice", 0, None)
    made.next_request(frozenset())
    return made


def test_nothing_but_the_trace_is_forwarded() -> None:
    """What is not known to be harmless stays here, whatever is invented next."""
    names = (b"authorization", b"cookie", b"x-vllm-priority", b"x-new-header")
    trace = [(b"tracestate", b"a=b"), (b"traceparent", b"00-1")]
    pairs = [*((name, b"1") for name in names), *trace]
    assert forwarded(headers_of(pairs)) == b"traceparent: 00-1\r\ntracestate: a=b\r\n"
    assert forwarded({}) == b""


@pytest.mark.parametrize("name", FORWARDED)
def test_a_header_that_no_engine_would_take_is_dropped(name: bytes) -> None:
    """An engine answers 431, and the client would look for a fault in its prompt."""
    fits, too_long = b"x" * FORWARDED_BYTES_MAX, b"x" * (FORWARDED_BYTES_MAX + 1)
    assert forwarded({name: fits}) == b"%b: %b\r\n" % (name, fits)
    assert forwarded({name: too_long}) == b""


def test_each_sending_and_each_attempt_has_an_id_of_its_own() -> None:
    """An engine may still be busy dropping what was taken back from it."""
    made = life()
    made.forwarded = b"traceparent: 00-1\r\n"
    first, second = header_lines(made, 1), header_lines(made, 2)
    made.next_request(frozenset())
    third = header_lines(made, 3)
    assert first == (
        b"content-type: application/json\r\nx-request-id: abc-1\r\ntraceparent: 00-1\r\n"
    )
    assert b"x-request-id: abc-1-2\r\n" in second
    assert b"x-request-id: abc-2-3\r\n" in third


def test_a_body_in_which_nothing_differs_is_the_clients_own() -> None:
    """Not a copy, not parsed and written again: the very bytes."""
    content = b'{ "model" : "m" }'
    made = life(content)
    assert made.call is not None
    assert body(made, None) is made.call.body
    assert body(life(b'{"x":1}'), None) == b'{"x":1}', "where none was named, none is added"


def test_alias_priority_and_the_wish_for_usage_are_said_at_once() -> None:
    """Each by itself would be another copy of a long prompt."""
    content = b'{"model":"alias","messages":[ 1 ],"stream":true}'
    sent = body(life(content, "m"), -7)
    assert isinstance(sent, bytes)
    assert json.loads(sent) == {
        "model": "m", "messages": [1], "stream": True, "priority": -7,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_without_an_alias_only_what_is_added_stands_before_the_clients_bytes() -> None:
    """Its numbers and escapes stay as it wrote them."""
    content = b'{"model":"m","temperature":0.70,"stream":true}'
    sent = body(life(content), 3)
    assert isinstance(sent, bytes)
    assert sent.endswith(content[1:])
    assert json.loads(sent)["priority"] == 3


@pytest.mark.parametrize(("model", "kind"), [("m", Upload), ("other", RenamedUpload)])
async def test_a_form_is_sent_as_it_is_stored(model: str, kind: type) -> None:
    """With its boundary, which no other header may replace."""
    made = await upload_life(model)
    sent = body(made, 5)
    assert isinstance(sent, kind)
    assert header_lines(made, 1).startswith(b"content-type: %b\r\n" % FORM_TYPE)
    assert made.call is not None
    assert made.call.upload is not None
    made.call.upload.close()


@pytest.mark.parametrize("model", ["m", "other"])
@pytest.mark.parametrize("options", [b"", b',"stream_options":{"x":1}'])
def test_token_ids_are_asked_for_beside_what_the_client_wrote(options: bytes, model: str) -> None:
    """Without them a broken stream could not be continued; twice, an engine might refuse it."""
    content = b'{"model":"m","stream":true%b}' % options
    sent = bytes(body(life(content, model), 1, asks_ids=True))  # type: ignore[arg-type]  # not large
    assert sent.count(b"return_token_ids") == 1
    told = json.loads(sent)
    assert told["return_token_ids"] is True
    assert told["stream_options"]["include_usage"] is True
    assert (told["model"], told["priority"]) == (model, 1)
    assert b"return_token_ids" not in bytes(body(life(content, model), 1))  # type: ignore[arg-type]  # the same


def test_the_salt_is_put_in_front_and_nothing_else_is_touched() -> None:
    """A body that is written anew is a body whose numbers and spaces may differ."""
    made = life(b'{ "model" : "m", "top_p":1.0 }')
    made.salt = Salt("0a", lambda name: name == "vllm")
    made.replica = "vllm"
    assert body(made, None) == b'{"cache_salt":"0a", "model" : "m", "top_p":1.0 }'
    assert body(made, 3) == b'{"priority":3,"cache_salt":"0a", "model" : "m", "top_p":1.0 }'
    made.replica = "another"
    assert body(made, None) == b'{ "model" : "m", "top_p":1.0 }'


@pytest.mark.parametrize("alias", [False, True])
def test_a_clients_own_salt_gives_way(alias: bool) -> None:
    """Of two members of one name most readers take the last, and that would be the client's."""
    made = life(b'{"cache_salt":"x","model":"m","c\\u0061che_salt":"y"}', "big" if alias else "m")
    made.salt = Salt("0a", lambda _: True)
    sent = body(made, 3)
    assert isinstance(sent, bytes)
    pairs = json.loads(sent, object_pairs_hook=sorted)
    assert pairs == [("cache_salt", "0a"), ("model", made.model), ("priority", 3)]
