"""The events of a streamed answer, byte for byte as the engine writes them.

Pure. What does not change within a stream is formatted once, since a busy server writes tens of
thousands of events for one set of headers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gateway.emulator.calls import Call
from gateway.emulator.text import Output

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every part of one answer repeats."""

    id: str
    created: int
    """Unix time, in seconds."""
    fingerprint: str
    call: Call

    def prompt_of(self, choice: int) -> tuple[int, ...]:
        """Choices are numbered prompt by prompt."""
        return self.call.prompts[choice // self.call.n]


class Chunks:
    """Writes the events of one stream.

    Chat opens with an event that has the role, one for each choice, in which the prompt's ids
    stand; in a completion they stand in the first event with text.
    """

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
        self._middle = self._after_text(b"null", b"null", b"null")
        self._shows_ids = call.return_token_ids
        self._prompt_ids_due = set(range(choices)) if self._shows_ids else set()
        self._includes_usage = options is not None and options.include_usage
        self._is_continuous = self._includes_usage and options is not None and options.continuous
        self._fingerprint = b',"system_fingerprint":"%s"' % envelope.fingerprint.encode()

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

    def token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> bytes:
        """The next tokens of a choice that goes on."""
        middle = self._middle
        if self._prompt_ids_due and choice in self._prompt_ids_due:
            middle = self._after_text(b"null", b"null", self._prompt_ids(choice))
        return b"%s%s%s%s}]%s}\n\n" % (
            self._heads[choice],
            orjson.dumps(text),
            middle,
            orjson.dumps(ids) if self._shows_ids else b"null",
            self._usage_so_far(choice, output.n_tokens) if self._is_continuous else b"",
        )

    def last_token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> bytes:
        """The tokens that end a choice; the fingerprint is here unless usage comes after it."""
        prompt_ids = self._prompt_ids(choice) if choice in self._prompt_ids_due else b"null"
        reason = b'"%s"' % output.finish_reason.encode()
        return b"%s%s%s%s}]%s%s}\n\n" % (
            self._heads[choice],
            orjson.dumps(text),
            self._after_text(reason, orjson.dumps(output.stop_reason), prompt_ids, ended=True),
            orjson.dumps(ids) if self._shows_ids else b"null",
            self._usage_so_far(choice, output.n_tokens),
            b"" if self._includes_usage else self._fingerprint,
        )

    def closing(self, output_tokens: int) -> list[bytes]:
        """What comes after the last token of all choices."""
        if not self._includes_usage:
            return [DONE]
        usage = _usage(self._envelope.call.prompt_tokens, output_tokens)
        return [b'%s],"usage":%s}%s}\n\n' % (self._start, usage, self._fingerprint), DONE]

    def _after_text(
        self, reason: bytes, stop: bytes, prompt_ids: bytes, *, ended: bool = False
    ) -> bytes:
        """What stands between a choice's text and its token ids."""
        if not self._is_chat:
            return (
                b',"logprobs":null,"finish_reason":%s,"stop_reason":%s,'
                b'"prompt_token_ids":%s,"token_ids":' % (reason, stop, prompt_ids)
            )
        shown_stop = b'"stop_reason":%s,' % stop if ended else b""
        return b'},"logprobs":null,"finish_reason":%s,%s"token_ids":' % (reason, shown_stop)

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


def _usage(prompt_tokens: int, output_tokens: int) -> bytes:
    """Without its closing brace, since chat adds a key."""
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % (
        prompt_tokens,
        prompt_tokens + output_tokens,
        output_tokens,
    )
