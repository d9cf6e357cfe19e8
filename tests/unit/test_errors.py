"""The table of refusals and the tree of errors: what each says, and how to come back."""

import re

import pytest

from gateway import errors
from gateway.api.openai import error_object, retry_headers
from gateway.core.messages import Reason
from gateway.errors import REFUSALS, EngineRefusedError, GatewayError, RefusedError

STATUS = {
    Reason.USER_QUEUE_FULL: (429, "rate_limit_exceeded"),
    Reason.QUEUE_FULL: (429, "over_capacity"),
    Reason.SHED: (429, "over_capacity"),
    Reason.TENANT_QUEUE_FULL: (429, "rate_limit_exceeded"),
    Reason.PATIENCE_SPENT: (429, "patience_spent"),
    Reason.WAIT_TOO_LONG: (429, "patience_spent"),
    Reason.PROMPT_TOO_LONG: (400, "context_length_exceeded"),
    Reason.NO_REPLICA: (503, "no_replica"),
    Reason.SHUTTING_DOWN: (503, "draining"),
}
TYPE = {429: "rate_limit_error", 503: "service_unavailable", 400: "invalid_request_error"}
TYPES = {
    "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error",
    "insufficient_quota", "server_error", "service_unavailable", "requests", "tokens",
}  # fmt: skip


def tree(root: type[GatewayError] = GatewayError) -> list[type[GatewayError]]:
    """All kinds of errors."""
    return [root, *(kind for child in root.__subclasses__() for kind in tree(child))]


def test_every_reason_to_refuse_has_its_row() -> None:
    """A new reason without one would be a 500."""
    assert set(REFUSALS) == set(Reason) == set(STATUS)


@pytest.mark.parametrize("reason", list(Reason))
def test_a_refusal_says_its_status_its_code_and_when_to_come_back(reason: Reason) -> None:
    """429 is the client's share, 503 our state; without a hint every SDK retries at once."""
    error = RefusedError(reason, 12.4)
    assert (error.status, error.code) == STATUS[reason]
    assert error.type == TYPE[error.status]
    assert error.reason is reason
    assert error.message.endswith(".")
    hint = [(b"retry-after", b"13"), (b"retry-after-ms", b"12400")]
    assert retry_headers(error) == ([] if error.status == 400 else hint)
    assert set(error_object(error)["error"]) == {"message", "type", "param", "code"}


def test_no_two_reasons_say_the_same() -> None:
    """Who reads the log must know whose bound it was, and when it was judged."""
    assert len({refusal.message for refusal in REFUSALS.values()}) == len(Reason)
    assert "on arrival" in REFUSALS[Reason.WAIT_TOO_LONG].message


@pytest.mark.parametrize(
    ("after_s", "seconds", "milliseconds"),
    [
        (0.0, b"1", b"1"),
        (0.2, b"1", b"200"),
        (1.5, b"2", b"1500"),
        (2.1, b"3", b"2100"),
        (30.0, b"30", b"30000"),
    ],
)
def test_the_hint_is_a_whole_number_of_seconds_from_one_on(
    after_s: float, seconds: bytes, milliseconds: bytes
) -> None:
    """`retry-after: 0` makes a storm of a full queue; fractions some clients cannot read."""
    headers = dict(retry_headers(RefusedError(Reason.SHED, after_s)))
    assert headers == {b"retry-after": seconds, b"retry-after-ms": milliseconds}


@pytest.mark.parametrize(
    ("should_retry", "expected"), [(None, None), (True, b"true"), (False, b"false")]
)
def test_whether_to_retry_is_said_where_it_is_known(
    should_retry: bool | None, expected: bytes | None
) -> None:
    """OpenAI's clients follow this header against the status."""
    error = GatewayError("x", should_retry=should_retry)
    assert dict(retry_headers(error)).get(b"x-should-retry") == expected


@pytest.mark.parametrize("kind", [k for k in tree() if k is not EngineRefusedError])
def test_every_kind_of_error_speaks_openais_vocabulary(kind: type[GatewayError]) -> None:
    """Clients branch on type and code; a number or a Python name there breaks them."""
    if kind is RefusedError:
        return
    assert 400 <= kind.status < 600
    assert kind.type in TYPES
    assert re.fullmatch("[a-z_]+", kind.code)
    assert kind.status != 408, "SDKs retry a 408 at once, to the back of the queue"


def test_no_two_kinds_share_status_and_code() -> None:
    """An operator reads metrics by code."""
    kinds = [
        kind
        for kind in tree()
        if kind not in (EngineRefusedError, RefusedError) and "code" in vars(kind)
    ]
    assert len(kinds) > 9
    assert len({(kind.status, kind.code) for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("status", [*range(400, 432), 451, 500, 503, 504, 529, 599])
def test_any_status_of_an_engine_has_words(status: int) -> None:
    """Engines answer whatever they like."""
    error = EngineRefusedError("no", status=status, param="p", kind="BadRequestError")
    assert error.status == status
    assert error.type in TYPES
    assert re.fullmatch("[a-z_]+", error.code)


def test_the_tree_imports_no_framework() -> None:
    """The edge turns errors into the shape of its route, not the other way round."""
    assert not {"fastapi", "starlette", "orjson"} & set(vars(errors))
