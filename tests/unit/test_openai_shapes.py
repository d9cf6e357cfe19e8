"""An engine's errors in all their shapes, and what a client is told of them."""

import json

import pytest

from gateway.api.openai import (
    ERROR_MESSAGE_CHARS_MAX,
    EngineError,
    engine_error,
    error_body,
    error_event,
)
from gateway.errors import EngineRefusedError, InvalidKeyError, UpstreamFailedError

BUSY = (
    "The engine is currently busy. Please retry later.",  # vLLM
    "The request queue is full.",  # SGLang
    "Model is overloaded",  # TGI
    "prefill token backlog limit exceeded",  # vLLM
)


@pytest.mark.parametrize(
    ("body", "message", "param", "kind"),
    [
        # vLLM: its code is a number.
        (b'{"error":{"message":"m","type":"BadRequestError","param":"n","code":400}}',
         "m", "n", "BadRequestError"),
        (b'{"error":"Unauthorized"}', "Unauthorized", None, None),
        (b'{"object":"error","message":"m","type":"T","param":null,"code":400}', "m", None, "T"),
        (b'{"detail":"Not Found"}', "Not Found", None, None),
        (b'{"detail":[{"loc":["body"],"msg":"bad"}]}', "[{'loc': ['body'], 'msg': 'bad'}]",
         None, None),
        # TGI
        (b'{"error":"too long","error_type":"validation"}', "too long", None, None),
        (b'{"error":{"error":"inner"}}', "inner", None, None),
        (b'{"error":{"message":"","code":"x"}}', "no message", None, None),
        (b'{"error":{"message":{"a":1},"param":3,"type":4}}', "{'a': 1}", None, None),
        (b'{"error":null}', "None", None, None),
        (b"{}", "no message", None, None),
        (b"[1,2]", "[1, 2]", None, None),
        (b"", "no message", None, None),
        (b"<html>502 Bad Gateway</html>", "<html>502 Bad Gateway</html>", None, None),
        (b"\xff\xfe", "\ufffd\ufffd", None, None),
    ],
)  # fmt: skip
def test_an_engines_error_is_read_in_any_shape(
    body: bytes, message: str, param: str | None, kind: str | None
) -> None:
    """Four engines and every proxy before them write errors in their own way."""
    assert engine_error(400, body) == EngineError(400, message, param, kind)


def test_an_endless_message_is_cut() -> None:
    """Engines have put whole prompts into their errors."""
    for body in (b'{"error":{"message":"' + b"x" * 10**5 + b'"}}', b"x" * 10**5):
        assert len(engine_error(400, body).message) == ERROR_MESSAGE_CHARS_MAX


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error":{"message":"m","code":503}}', 503),
        (b'{"error":{"message":"m","code":400}}', 400),
        (b'{"error":{"message":"m","code":"400"}}', 400),
        (b'{"error":{"message":"m","code":"server_error"}}', 500),
        (b'{"error":{"message":"m","code":200}}', 500),
        (b'{"error":{"message":"m","code":700}}', 500),
        (b'{"error":{"message":"m"}}', 500),
        (b'{"error":"m"}', 500),
    ],
)
def test_an_error_inside_a_stream_has_the_status_it_names(body: bytes, status: int) -> None:
    """The 200 was sent before the engine had looked at the request."""
    assert engine_error(200, body).status == status


@pytest.mark.parametrize("message", BUSY)
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_engine_is_known_by_its_words(message: str, status: int) -> None:
    """Backpressure: the request goes back to its place, and nobody is at fault."""
    assert EngineError(status, message).is_busy


@pytest.mark.parametrize(
    ("status", "message"),
    [(503, "the engine is dead"), (429, "quota"), (400, BUSY[0]), (500, BUSY[1])],
)
def test_other_errors_are_not_taken_for_backpressure(status: int, message: str) -> None:
    """A dead engine would be waited for until patience ends."""
    assert not EngineError(status, message).is_busy


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422, 429])
def test_what_is_the_clients_fault_is_passed_on(status: int) -> None:
    """The engine knows best, and no other replica would say otherwise."""
    problem = EngineError(status, "no", "p")
    error = problem.as_error()
    assert problem.is_clients
    assert isinstance(error, EngineRefusedError)
    assert (error.status, error.message, error.param) == (status, "no", "p")


@pytest.mark.parametrize("status", [401, 500, 502, 503, 599])
def test_what_is_the_engines_fault_is_an_upstream_failure(status: int) -> None:
    """The engine's 401 is about the gateway's key: a client would look for a fault in its own."""
    problem = EngineError(status, "no")
    assert not problem.is_clients
    assert isinstance(problem.as_error(), UpstreamFailedError)


def test_an_error_has_openais_shape() -> None:
    """All four fields are there, null where there is nothing to say."""
    assert json.loads(error_body(InvalidKeyError("who?"))) == {
        "error": {
            "message": "who?",
            "type": "authentication_error",
            "param": None,
            "code": "invalid_api_key",
        }
    }


def test_an_error_event_is_one_event_and_the_end() -> None:
    """Clients stop reading at `[DONE]`, and wait for it."""
    event, done, rest = error_event(UpstreamFailedError("a\n\nb")).split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == "a\n\nb"
    assert (done, rest) == (b"data: [DONE]", b"")
