"""The words in which a route speaks for itself: OpenAI's, its Responses', and Anthropic's."""

import json

import pytest

from gateway.api import anthropic, openai
from gateway.api.routes import COUNT_TOKENS, MESSAGES, RESPONSES, ROUTES
from gateway.api.shapes import CHUNKS, MESSAGE, RESPONSE, Shape, shape_of
from gateway.core.messages import Reason
from gateway.errors import (
    REFUSALS,
    BadRequestError,
    BodyTooLargeError,
    EngineRefusedError,
    ForbiddenError,
    GatewayError,
    InvalidKeyError,
    MethodNotAllowedError,
    ModelNotFoundError,
    RefusedError,
    UpstreamFailedError,
    UpstreamTimeoutError,
)
from gateway.upstream.sse import Events, StreamMeter
from tests.support.sse_reference import events_of, read

SHAPES = {Events.CHUNKS: CHUNKS, Events.RESPONSE: RESPONSE, Events.MESSAGE: MESSAGE}
NASTY = 'a "quote"\n\ndata: [DONE]\r\n\r\nevent: message_stop\n\n\\ \x00 北京🙂 \u2028'
every_shape = pytest.mark.parametrize(("events", "shape"), SHAPES.items())


def test_each_route_speaks_the_language_of_its_clients() -> None:
    """A client of one vendor cannot read the errors of the other."""
    for route in ROUTES.values():
        expected = CHUNKS
        if route in (MESSAGES, COUNT_TOKENS):
            expected = MESSAGE
        elif route is RESPONSES:
            expected = RESPONSE
        assert shape_of(route) is expected


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequestError("no"), "invalid_request_error"),
        (InvalidKeyError("no"), "authentication_error"),
        (ForbiddenError("no"), "permission_error"),
        (ModelNotFoundError("no"), "not_found_error"),
        (MethodNotAllowedError("no"), "invalid_request_error"),
        (BodyTooLargeError("no"), "request_too_large"),
        (RefusedError(Reason.QUEUE_FULL, 1.0), "rate_limit_error"),
        (RefusedError(Reason.NO_REPLICA, 1.0), "overloaded_error"),
        (UpstreamFailedError("no"), "api_error"),
        (UpstreamTimeoutError("no"), "timeout_error"),
        (GatewayError("no"), "api_error"),
        (EngineRefusedError("no", status=422, param=None, kind=None), "invalid_request_error"),
    ],
)
def test_an_error_is_told_in_anthropics_words(error: GatewayError, kind: str) -> None:
    """Its SDK decides by status, people by the type; programs need not read the message."""
    told = json.loads(anthropic.error_body(error))
    inner = {"type": kind, "message": error.message, "code": error.code}
    assert told == {"type": "error", "error": inner}


@pytest.mark.parametrize("reason", REFUSALS)
def test_every_refusal_has_a_word_of_anthropics(reason: Reason) -> None:
    """A reason that is new must not become an error without a type."""
    told = json.loads(anthropic.error_body(RefusedError(reason, 1.0)))
    assert told["error"]["type"] in {
        "invalid_request_error", "rate_limit_error", "overloaded_error",
    }  # fmt: skip


@every_shape
def test_an_error_event_is_one_error_and_the_end_whatever_it_says(
    events: Events, shape: Shape
) -> None:
    """A hand-built frame breaks at the first quote, and its newline ends the event."""
    stream = shape.error_event(UpstreamFailedError(NASTY))
    reading = read(stream, events)
    assert reading.events == 0
    assert len(reading.errors) == 1
    assert json.loads(reading.errors[0])["error"]["message"] == NASTY
    assert stream.endswith(b"\n\n")
    assert stream.count(b"[DONE]\n\n") == (0 if events is Events.MESSAGE else 1)


@every_shape
def test_the_gateways_own_error_is_seen_by_a_gateway_in_front_of_it(
    events: Events, shape: Shape
) -> None:
    """Gateways are put behind one another; a success would be counted for each failure."""
    meter = StreamMeter(lambda: 0.0, lambda: None, events)
    meter.feed(shape.error_event(UpstreamFailedError("no")))
    assert meter.error_event is not None
    assert meter.events == 0


@every_shape
def test_a_sign_of_life_is_no_output_and_has_no_id(events: Events, shape: Shape) -> None:
    """After an `id:` field openai-python takes every comment for an empty event, and fails."""
    life = shape.waits(3, 4.26) + shape.waits(1, None)
    assert b"\nid:" not in life
    assert not life.startswith(b"id:")
    meter = StreamMeter(lambda: 0.0, lambda: None, events)
    meter.feed(life)
    assert (meter.events, meter.error_event, meter.last_at) == (0, None, None)
    named = [(name, json.loads(data)) for name, data in events_of(life)]
    assert named == ([("ping", {"type": "ping"})] * 2 if events is Events.MESSAGE else [])


@every_shape
def test_what_an_engines_error_lacks_is_no_second_error(events: Events, shape: Shape) -> None:
    """It would hide the first."""
    assert b"error" not in shape.end
    assert shape.end in (b"", openai.DONE_EVENT)


def test_the_error_of_a_response_is_both_an_event_of_its_own_and_an_error() -> None:
    """Libraries raise for what stands under `error`; typed clients read the event's fields."""
    error = BadRequestError("no", param="input")
    ((name, data), done) = events_of(openai.response_error_event(error))
    event = json.loads(data)
    assert (name, done) == ("error", ("", b"[DONE]"))
    assert (event["type"], event["code"], event["message"], event["param"]) == (
        "error", "invalid_request", "no", "input",
    )  # fmt: skip
    assert event["error"] == json.loads(openai.error_body(error))["error"]
    assert isinstance(event["sequence_number"], int)


def test_an_id_stands_where_its_clients_look_for_it() -> None:
    """What a user quotes to the operator."""
    ids = [shape.id_header for shape in (CHUNKS, RESPONSE, MESSAGE)]
    assert ids == [b"x-request-id", b"x-request-id", b"request-id"]
