"""The events of a streamed chat or completion, byte for byte as the engine writes them.

Pure. What does not change within a stream is formatted once, since a busy server writes tens of
thousands of events for one set of headers.
"""

from collections.abc import Sequence

import orjson

from gateway.emulator.envelope import KEEP_ALIVE, Envelope
from gateway.emulator.logprobs import chat_logprobs, completion_logprobs
from gateway.emulator.refusals import Refusal
from gateway.emulator.text import Output

DONE = b"data: [DONE]\n\n"


class Chunks:
    """Writes the events of one stream.

    Chat opens with an event that has the role, one for each choice, in which the prompt's ids
    stand; in a completion they stand in the first event with text.
    """

    keep_alive = KEEP_ALIVE

    def __init__(self, envelope: Envelope, choices: int) -> None:
        call, options = envelope.call, envelope.call.stream_options
        self._envelope = envelope
        self._is_chat = call.form == "chat"
        self._start = b'data: {"id":%s,"object":"%s","created":%d,"model":%s,"choices":[' % (
            orjson.dumps(envelope.id),
            b"chat.completion.chunk" if self._is_chat else b"text_completion",
            envelope.created,
            orjson.dumps(call.model),
        )
        text = b'"delta":{"content":' if self._is_chat else b'"text":'
        self._heads = [b'%s{"index":%d,%s' % (self._start, i, text) for i in range(choices)]
        self._text_ends = b""
        if call.tool is not None:
            self._heads = [self._tool_head(choice) for choice in range(choices)]
            self._text_ends = b"}}]"
        self._middle = self._after_text(b"null", b"null", b"null", b"null")
        self._shows_ids = call.return_token_ids
        self._prompt_ids_due = set(range(choices)) if self._shows_ids else set()
        self._offsets = [0] * choices
        self._is_plain = not self._shows_ids and call.top_logprobs is None
        self._includes_usage = options is not None and options.include_usage
        self._is_continuous = self._includes_usage and options is not None and options.continuous
        self._fingerprint = b',"system_fingerprint":"%s"' % envelope.fingerprint.encode()

    def at_once(self) -> list[bytes]:
        """Nothing: the engine starts before the first event."""
        return []

    def opening(self) -> list[bytes]:
        """What comes with the first token, before it."""
        if not self._is_chat:
            return []
        return [
            b'%s{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}]%s,"prompt_token_ids":%s,"prompt_text":null}\n\n'
            % (self._start, choice, self._usage_so_far(choice, 0), self._prompt_ids(choice))
            for choice in range(len(self._heads))
        ]

    def token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The next tokens of a choice that goes on."""
        middle = self._middle
        if not self._is_plain:
            due = choice in self._prompt_ids_due
            prompt_ids = self._prompt_ids(choice) if due else b"null"
            probable = self._logprobs(choice, ids, text)
            middle = self._after_text(b"null", b"null", prompt_ids, probable)
        event = b"%s%s%s%s}]%s}\n\n" % (
            self._heads[choice],
            orjson.dumps(text),
            middle,
            orjson.dumps(ids) if self._shows_ids else b"null",
            self._usage_so_far(choice, output.n_tokens) if self._is_continuous else b"",
        )
        if self._text_ends:
            self._heads[choice] = self._tool_head(choice, goes_on=True)
        return [event]

    def last_token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The tokens that end a choice; the fingerprint is here unless usage comes after it."""
        prompt_ids = self._prompt_ids(choice) if choice in self._prompt_ids_due else b"null"
        probable = self._logprobs(choice, ids, text)
        reason = orjson.dumps(finish_reason(self._envelope, output))
        stop = orjson.dumps(output.stop_reason)
        return [
            b"%s%s%s%s}]%s%s}\n\n"
            % (
                self._heads[choice],
                orjson.dumps(text),
                self._after_text(reason, stop, prompt_ids, probable),
                orjson.dumps(ids) if self._shows_ids else b"null",
                self._usage_so_far(choice, output.n_tokens),
                b"" if self._includes_usage else self._fingerprint,
            )
        ]

    def closing(self, output_tokens: int) -> list[bytes]:
        """What comes after the last token of all choices."""
        if not self._includes_usage:
            return [DONE]
        usage = _usage(self._envelope.call.prompt_tokens, output_tokens)
        return [b'%s],"usage":%s}%s}\n\n' % (self._start, usage, self._fingerprint), DONE]

    def failure(self, refusal: Refusal, sent: int) -> list[bytes]:
        """The error as an event, and then the word that looks like success."""
        return [refusal.as_event, DONE]

    def _tool_head(self, choice: int, *, goes_on: bool = False) -> bytes:
        """What stands before a piece of a tool's arguments; id and name come with the first."""
        tool = self._envelope.call.tool
        assert tool is not None
        call, name = b"", b"" if tool.is_named else b'"name":null,'
        if not goes_on:
            id = orjson.dumps(tool_call_id(self._envelope, choice))
            call, name = b'"id":%s,"type":"function",' % id, b'"name":%s,' % orjson.dumps(tool.name)
        return b'%s{"index":%d,"delta":{"tool_calls":[{%s"index":0,"function":{%s"arguments":' % (
            *(self._start, choice, call, name),
        )

    def _after_text(self, reason: bytes, stop: bytes, prompt_ids: bytes, probable: bytes) -> bytes:
        """What stands between a choice's text and its token ids."""
        if not self._is_chat:
            return (
                b',"logprobs":%s,"finish_reason":%s,"stop_reason":%s,'
                b'"prompt_token_ids":%s,"token_ids":' % (probable, reason, stop, prompt_ids)
            )
        shown_stop = b"" if reason == b"null" else b'"stop_reason":%s,' % stop
        return b'%s},"logprobs":%s,"finish_reason":%s,%s"token_ids":' % (
            *(self._text_ends, probable, reason, shown_stop),
        )

    def _logprobs(self, choice: int, ids: Sequence[int], text: str) -> bytes:
        top = self._envelope.call.top_logprobs
        if top is None:
            return b"null"
        vocabulary, offset = self._envelope.card.vocabulary, self._offsets[choice]
        self._offsets[choice] += len(text)
        if self._is_chat:
            return orjson.dumps(chat_logprobs(vocabulary, ids, top))
        return orjson.dumps(completion_logprobs(vocabulary, ids, top, offset))

    def _prompt_ids(self, choice: int) -> bytes:
        if not self._shows_ids:
            return b"null"
        self._prompt_ids_due.discard(choice)
        return orjson.dumps(self._envelope.prompt_of(choice))

    def _usage_so_far(self, choice: int, output_tokens: int) -> bytes:
        """The running usage of one choice, when it was asked for."""
        if not self._is_continuous:
            return b""
        usage = _usage(len(self._envelope.prompt_of(choice)), output_tokens)
        details = b',"completion_tokens_details":null' if self._is_chat else b""
        return b',"usage":%s%s}' % (usage, details)


def finish_reason(envelope: Envelope, output: Output) -> str:
    """Why a choice ended, as OpenAI's routes tell it."""
    tool = envelope.call.tool
    if tool is not None and not tool.is_named and output.finish_reason == "stop":
        return "tool_calls"
    return output.finish_reason


def tool_call_id(envelope: Envelope, choice: int) -> str:
    """The id of the only tool call of a choice."""
    id = envelope.derived_id("chatcmpl-tool-")
    return f"{id}-{choice}" if choice else id


def _usage(prompt_tokens: int, output_tokens: int) -> bytes:
    """Without its closing brace, since chat adds a key."""
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % (
        prompt_tokens,
        prompt_tokens + output_tokens,
        output_tokens,
    )
