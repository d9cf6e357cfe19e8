"""Answers of Anthropic's Messages API, whole or as named events.

Pure. Stands on the chat that the server makes of a message: its first chunk becomes the start, its
usage the end, and an empty piece of text becomes nothing.
"""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.emulator.envelope import Envelope, Said
from gateway.emulator.refusals import Refusal
from gateway.emulator.text import Output

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""Anthropic's keep-alive."""

_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_BLOCK_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
_DELTA_END = b'},"index":0}\n\n'


def message_body(envelope: Envelope, said: Said) -> bytes:
    """The answer of /v1/messages that was not streamed."""
    output, ids, text = said
    reason, sequence = _stop_reason(envelope, output)
    body = {
        "id": envelope.id,
        "type": "message",
        "role": "assistant",
        "content": [_block(envelope, text)],
        "model": envelope.call.model,
        "stop_reason": reason,
        **({} if sequence is None else {"stop_sequence": sequence}),
        "usage": _usage(envelope, len(ids)),
    }
    return orjson.dumps(body)


def count_body(tokens: int) -> bytes:
    """The answer of /v1/messages/count_tokens."""
    return b'{"input_tokens":%d,"context_management":{"original_input_tokens":%d}}' % (
        tokens,
        tokens,
    )


class MessageEvents:
    """Writes the events of one message, which has one block of text or one call of a tool."""

    keep_alive = PING

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._is_open = False
        self._reason: tuple[str, str | None] = ("end_turn", None)
        kind, key = b"text_delta", b"text"
        if envelope.call.tool is not None:
            kind, key = b"input_json_delta", b"partial_json"
        self._delta_start = (
            b"event: content_block_delta\n"
            b'data: {"type":"content_block_delta","delta":{"type":"%s","%s":' % (kind, key)
        )

    def at_once(self) -> list[bytes]:
        """Nothing: the message starts with its first token."""
        return []

    def opening(self) -> list[bytes]:
        """The start, with the tokens of the prompt."""
        message: dict[str, Any] = {
            "id": self._envelope.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._envelope.call.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._envelope, 0),
        }
        return [_event("message_start", {"type": "message_start", "message": message})]

    def token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The next text; nothing for half a character."""
        if not text:
            return []
        delta = b"%s%s%s" % (self._delta_start, orjson.dumps(text), _DELTA_END)
        if self._is_open:
            return [delta]
        self._is_open = True
        start = {
            "type": "content_block_start",
            "content_block": _opening_block(self._envelope),
            "index": 0,
        }
        return [_event("content_block_start", start), delta]

    def last_token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The last text; why it ended is told later."""
        self._reason = _stop_reason(self._envelope, output)
        return self.token(choice, output, ids, text)

    def closing(self, output_tokens: int) -> list[bytes]:
        """The end of the block, the reason with all tokens, and the end."""
        reason, sequence = self._reason
        end = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": _usage(self._envelope, output_tokens),
        }
        block = [_BLOCK_STOP] if self._is_open else []
        return [*block, _event("message_delta", end), _STOP]

    def failure(self, refusal: Refusal, sent: int) -> list[bytes]:
        """What the server makes of an error in the chat beneath: it cannot read it as a chunk."""
        error = {"type": "internal_error", "message": _unreadable(refusal)}
        return [_event("error", {"type": "error", "error": error})]


def _block(envelope: Envelope, text: str) -> dict[str, Any]:
    if envelope.call.tool is None:
        return {"type": "text", "text": text}
    block = _opening_block(envelope)
    try:
        block["input"] = json.loads(text)
    except json.JSONDecodeError:
        # The arguments were cut off by max_tokens.
        block["input"] = {}
    return block


def _opening_block(envelope: Envelope) -> dict[str, Any]:
    tool = envelope.call.tool
    if tool is None:
        return {"type": "text", "text": ""}
    id = envelope.derived_id("chatcmpl-tool-")
    return {"type": "tool_use", "id": id, "name": tool.name, "input": {}}


def _stop_reason(envelope: Envelope, output: Output) -> tuple[str, str | None]:
    """Anthropic's words for the end, and the stop string if it was one."""
    if output.finish_reason == "length":
        return "max_tokens", None
    if envelope.call.tool is not None:
        return "tool_use", None
    if output.stop_reason is not None:
        return "stop_sequence", output.stop_reason
    return "end_turn", None


def _usage(envelope: Envelope, output_tokens: int) -> dict[str, int]:
    return {"input_tokens": envelope.call.prompt_tokens, "output_tokens": output_tokens}


def _event(name: str, body: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(body))


def _unreadable(refusal: Refusal) -> str:
    """The message of a validation error over an error where a chunk was expected."""
    shown = repr(json.loads(refusal.body))
    shown = f"{shown[:25]}...{shown[-24:]}"
    missing = (
        f"Field required [type=missing, input_value={shown}, input_type=dict]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/missing"
    )
    return (
        "2 validation errors for ChatCompletionStreamResponse\n"
        f"model\n  {missing}\nchoices\n  {missing}"
    )
