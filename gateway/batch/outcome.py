"""What one line of a batch came to: its line of output, and whether it is tried again.

Bodies of engines go into the output as they are; nothing here waits or counts.
"""

import json
from dataclasses import dataclass

import msgspec

AGAIN_S_MIN = 0.5
AGAIN_S_MAX = 30.0
NOT_RUN = {
    "expired": ("batch_expired", "The completion window ended before this request was executed."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was executed."),
    "failed": ("batch_failed", "The batch ended before this request was executed."),
}
"""How a batch ended -> code and message of a line that it did not run."""

_ANY = msgspec.json.Decoder(msgspec.Raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the gateway answered to a line. A status of 0: the answer broke off."""

    status: int
    request_id: str
    body: bytes
    code: str | None = None
    """Of an error of the gateway or an engine."""
    retry_after_s: float | None = None
    should_retry: bool | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """The line is to run again, after so long."""

    after_s: float
    is_refusal: bool
    """Whether it never ran, so that this counts as no attempt."""


def again(answer: Answer, *, attempts: int, attempts_max: int, left_s: float) -> Again | None:
    """Whether and when a line runs again that was answered so, `attempts` times; None: never.

    `left_s` is what is left of the batch's window: a budget that is free again within it is
    waited for. A refusal is no answer: the line has not run.
    """
    status, hint = answer.status, answer.retry_after_s
    if status in (429, 503):
        if answer.code == "insufficient_quota" and hint is not None and hint < left_s:
            return Again(max(hint, AGAIN_S_MIN), is_refusal=True)
        if answer.should_retry is False:
            return None
        return Again(min(max(hint or 0.0, AGAIN_S_MIN), AGAIN_S_MAX), is_refusal=True)
    is_broken = (status == 0 or status >= 500) and answer.should_retry is not False
    if is_broken and attempts < attempts_max:
        return Again(min(AGAIN_S_MIN * 2.0**attempts, AGAIN_S_MAX), is_refusal=False)
    return None


def request_id(batch_id: str, number: int) -> str:
    """What a line is called in the outputs; `number` is that of the request, from 0."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


def line_of(ident: str, custom_id: str, answer: Answer) -> bytes:
    """The line of output for an answer, with its end."""
    if answer.status == 0:
        return _without_answer(
            ident, custom_id, ("request_failed", "The engine's answer broke off, again and again.")
        )
    return (
        b'{"id":%b,"custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},'
        b'"error":null}\n'
    ) % (
        _text(ident), _text(custom_id), answer.status, _text(answer.request_id),
        _in_one_line(answer.body),
    )  # fmt: skip


def line_not_run(ident: str, custom_id: str, ending: str) -> bytes:
    """The line of a request that was not run, in a batch that ended so."""
    return _without_answer(ident, custom_id, NOT_RUN[ending])


def _without_answer(ident: str, custom_id: str, why: tuple[str, str]) -> bytes:
    return b'{"id":%b,"custom_id":%b,"response":null,"error":{"code":%b,"message":%b}}\n' % (
        *(_text(ident), _text(custom_id)),
        *(_text(text) for text in why),
    )


def _in_one_line(body: bytes) -> bytes:
    """A JSON body unchanged, but that it has no line ends; any other one as a text."""
    try:
        _ANY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.dumps(body.decode("utf-8", "replace")).encode()
    # Within JSON's texts there are no bare line ends, so these stand between values.
    return body.replace(b"\n", b" ").replace(b"\r", b" ")


def _text(text: str) -> bytes:
    return msgspec.json.encode(text)
