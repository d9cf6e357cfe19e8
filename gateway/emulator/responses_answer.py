"""Answers of OpenAI's Responses API, whole or as named and numbered events.

Puts what is to be remembered into the archive when it is complete, and not before; knows no HTTP.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.emulator.archive import Archive, Kept
from gateway.emulator.envelope import KEEP_ALIVE, Envelope
from gateway.emulator.refusals import Refusal
from gateway.emulator.text import Output


def response_of(
    envelope: Envelope,
    *,
    status: str,
    output: Sequence[dict[str, Any]] = (),
    output_tokens: int | None = None,
) -> dict[str, Any]:
    """A response as it stands; `output_tokens` None: usage is not yet known."""
    call, shown = envelope.call, envelope.call.request
    reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": envelope.id,
        "created_at": envelope.created,
        "incomplete_details": reason,
        "instructions": shown["instructions"],
        "metadata": shown["metadata"],
        "model": call.model,
        "object": "response",
        "output": list(output),
        "parallel_tool_calls": shown["parallel_tool_calls"],
        "temperature": call.temperature,
        "tool_choice": shown["tool_choice"],
        "tools": shown["tools"],
        "top_p": call.top_p,
        "background": shown["background"],
        "max_output_tokens": call.tokens_max(call.prompts[0], envelope.card.context_tokens),
        "max_tool_calls": shown["max_tool_calls"],
        "previous_response_id": shown["previous_response_id"],
        "prompt": shown["prompt"],
        "reasoning": shown["reasoning"],
        "service_tier": shown["service_tier"],
        "status": status,
        "text": shown["text"],
        "top_logprobs": None,
        "truncation": shown["truncation"],
        "usage": None if output_tokens is None else _usage(call.prompt_tokens, output_tokens),
        "user": shown["user"],
        "presence_penalty": shown["presence_penalty"],
        "frequency_penalty": shown["frequency_penalty"],
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def finished_response(
    envelope: Envelope, output: Output, text: str, archive: Archive
) -> dict[str, Any]:
    """A response that is complete, or as complete as it will be; kept if it was to be stored."""
    status = "incomplete" if output.finish_reason == "length" else "completed"
    item = item_of(envelope, text, status="completed")
    body = response_of(envelope, status=status, output=(item,), output_tokens=output.n_tokens)
    if envelope.call.request["store"]:
        turns = (*envelope.call.turns, ("assistant", text))
        archive.keep(envelope.id, Kept(body=body, turns=turns))
    return body


def item_of(envelope: Envelope, text: str | None, *, status: str) -> dict[str, Any]:
    """The one item of the output: a message or a call of a tool; None: not begun."""
    tool = envelope.call.tool
    if tool is not None:
        return {
            "arguments": text or "",
            "call_id": envelope.derived_id("chatcmpl-tool-"),
            "name": tool.name,
            "type": "function_call",
            "id": envelope.derived_id("fc_"),
            "caller": None,
            "namespace": None,
            "status": status,
        }
    return {
        "id": envelope.derived_id("msg_"),
        "content": [] if text is None else [_part(text, None)],
        "role": "assistant",
        "status": status,
        "type": "message",
        "phase": None,
    }


class ResponseEvents:
    """Writes the events of one response. The first two come before the engine has started."""

    keep_alive = KEEP_ALIVE

    def __init__(self, envelope: Envelope, archive: Archive) -> None:
        self._envelope = envelope
        self._archive = archive
        self._pieces: list[str] = []
        self._output: Output | None = None
        self._number = 0
        self._is_tool = envelope.call.tool is not None
        kind = "response.function_call_arguments" if self._is_tool else "response.output_text"
        self._kind = kind
        self._item = orjson.dumps(item_of(envelope, None, status="in_progress")["id"])

    def at_once(self) -> list[bytes]:
        """The response as it was taken in, twice."""
        body = response_of(self._envelope, status="in_progress")
        return [
            self._event("response.created", {"response": body}),
            self._event("response.in_progress", {"response": body}),
        ]

    def opening(self) -> list[bytes]:
        """Nothing: the item begins with the first text."""
        return []

    def token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The next text; nothing for half a character."""
        if not text:
            return []
        events = [] if self._pieces else self._begin()
        self._pieces.append(text)
        self._number += 1
        name, index, probable = self._kind.encode(), b'"content_index":0,', b'"logprobs":[],'
        if self._is_tool:
            index = probable = b""
        events.append(
            b'event: %s.delta\ndata: {%s"delta":%s,"item_id":%s,%s"output_index":0,'
            b'"sequence_number":%d,"type":"%s.delta"}\n\n'
            % (name, index, orjson.dumps(text), self._item, probable, self._number - 1, name)
        )
        return events

    def last_token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The last text."""
        self._output = output
        return self.token(choice, output, ids, text)

    def closing(self, output_tokens: int) -> list[bytes]:
        """The ends of all that was begun, and the whole response."""
        assert self._output is not None
        text = "".join(self._pieces)
        events = self._end(text) if self._pieces else []
        body = finished_response(self._envelope, self._output, text, self._archive)
        return [*events, self._event("response.completed", {"response": body})]

    def failure(self, refusal: Refusal, sent: int) -> list[bytes]:
        """The error event that this API defines; there is no other end."""
        self._number = sent
        error = {"code": str(refusal.status), "message": refusal.message, "param": None}
        return [self._event("error", error)]

    def _begin(self) -> list[bytes]:
        item = item_of(self._envelope, None, status="in_progress")
        added = self._event("response.output_item.added", {"item": item, "output_index": 0})
        if self._is_tool:
            return [added]
        part = {**self._place(), "part": _part("", [])}
        return [added, self._event("response.content_part.added", part)]

    def _end(self, text: str) -> list[bytes]:
        if self._is_tool:
            tool = self._envelope.call.tool
            assert tool is not None
            place = {"item_id": orjson.loads(self._item), "output_index": 0}
            ends = [(f"{self._kind}.done", {"arguments": text, **place, "name": tool.name})]
        else:
            ends = [
                (f"{self._kind}.done", {**self._place(), "logprobs": [], "text": text}),
                ("response.content_part.done", {**self._place(), "part": _part(text, None)}),
            ]
        item = item_of(self._envelope, text, status="completed")
        ends.append(("response.output_item.done", {"item": item, "output_index": 0}))
        return [self._event(name, body) for name, body in ends]

    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": orjson.loads(self._item), "output_index": 0}

    def _event(self, name: str, body: dict[str, Any]) -> bytes:
        """Keys are in alphabetical order, as in the library that the server writes them with."""
        numbered = {**body, "sequence_number": self._number, "type": name}
        self._number += 1
        ordered = dict(sorted(numbered.items()))
        return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(ordered))


def _part(text: str, logprobs: list[Any] | None) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _usage(prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": prompt_tokens + output_tokens,
    }
