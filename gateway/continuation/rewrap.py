"""Chunks of a completion that goes on from token ids, as chunks of the stream that it goes on with.

Texts, reasons and ids are the engine's own bytes; around them stands what the client's stream has.
"""

import orjson

from gateway.continuation.chunks import ABSENT, Choice, Chunk, read_chunk
from gateway.upstream.frames import read_event

_NULL = b"null"


class Rewrap:
    """Gives the chunks of a completion the shape of the stream before them."""

    __slots__ = ("_front", "_is_chat", "_output_tokens", "_prompt_tokens", "_told_tokens")

    def __init__(
        self,
        *,
        front: bytes,
        is_chat: bool,
        prompt_tokens: int,
        output_tokens: int,
        told_tokens: int,
    ) -> None:
        """`front`: see `front_of`; `prompt_tokens` are of the client's own prompt.

        `output_tokens`: those that became part of the prompt; `told_tokens`: those that were sent.
        """
        self._told_tokens = told_tokens
        self._front = front
        self._is_chat = is_chat
        self._prompt_tokens = prompt_tokens
        self._output_tokens = output_tokens

    def event(self, event: bytes) -> bytes:
        """One event in its new shape; comments, errors and the end are the same everywhere."""
        payload = read_event(event)[1]
        chunk = None if payload is None else read_chunk(payload)
        if chunk is None:
            return event
        head = self._front
        if chunk.choices:
            head += self._choice(chunk.choices[0])
        tail = b"]"
        if chunk.usage is not None:
            tail += b',"usage":' + self._usage(chunk)
        if chunk.system_fingerprint != ABSENT:
            tail += b',"system_fingerprint":' + bytes(chunk.system_fingerprint)
        return head + tail + b"}\n\n"

    def _choice(self, choice: Choice) -> bytes:
        text = bytes(choice.text) or b'""'
        reason, why = bytes(choice.finish_reason), bytes(choice.stop_reason)
        ids = _NULL if choice.token_ids is None else orjson.dumps(choice.token_ids)
        if not self._is_chat:
            return (
                b'{"index":0,"text":%b,"logprobs":null,"finish_reason":%b,"stop_reason":%b,'
                b'"prompt_token_ids":null,"token_ids":%b}' % (text, reason, why, ids)
            )
        if reason != _NULL:
            reason += b',"stop_reason":' + why
        return (
            b'{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":%b,"token_ids":%b}'
            % (text, reason, ids)
        )

    def _usage(self, chunk: Chunk) -> bytes:
        """What both parts took together; the prompt once."""
        assert chunk.usage is not None
        told = chunk.usage.get("completion_tokens", _NULL)
        output = int(told) if bytes(told).isdigit() else 0
        output += self._output_tokens
        if chunk.choices:
            # While it goes on, a count that its client has seen must not fall.
            output = max(output, self._told_tokens)
        return usage_of(self._prompt_tokens, output)


def usage_of(prompt_tokens: int, output_tokens: int) -> bytes:
    """A usage object as engines write it.

    What of the prompt came from a cache is left out: of another replica's it would tell nothing.
    """
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
        prompt_tokens, prompt_tokens + output_tokens, output_tokens,
    )  # fmt: skip
