"""Answers to uploads of speech, whole or as chunks like a chat's.

Pure; the order of keys is the engine's.
"""

import math
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.emulator.chunks import DONE
from gateway.emulator.envelope import KEEP_ALIVE, Envelope, Said
from gateway.emulator.refusals import Refusal
from gateway.emulator.text import Output


def speech_body(envelope: Envelope, said: Said) -> bytes:
    """The answer that was not streamed; a plain text is wrapped in JSON too."""
    _, ids, text = said
    asked = envelope.call.request
    duration_s: float = asked["duration_s"]
    if asked["response_format"] == "verbose_json":
        start = {"duration": duration_s, "language": asked["language"], "text": text}
        segment = _segment(ids, text, duration_s)
        return orjson.dumps({**start, "segments": [segment], "words": None})
    if envelope.call.form == "translation":
        return orjson.dumps({"text": text})
    usage = {"type": "duration", "seconds": math.ceil(duration_s)}
    return orjson.dumps({"text": text, "usage": usage})


class SpeechChunks:
    """Writes the events of one stream. There is no opening; empty pieces are left out."""

    keep_alive = KEEP_ALIVE

    def __init__(self, envelope: Envelope) -> None:
        call, options = envelope.call, envelope.call.stream_options
        assert options is not None
        self._prompt_tokens = call.prompt_tokens
        self._includes_usage = options.include_usage
        self._is_continuous = options.include_usage and options.continuous
        self._start = b'data: {"id":%s,"object":"%s.chunk","created":%d,"model":%s,"choices":[' % (
            *(orjson.dumps(envelope.id), call.form.encode()),
            *(envelope.created, orjson.dumps(call.model)),
        )

    def at_once(self) -> list[bytes]:
        """Nothing: the engine starts before the first event."""
        return []

    def opening(self) -> list[bytes]:
        """Nothing: there is no role to tell."""
        return []

    def token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The next text."""
        return [self._event(output, text)] if text else []

    def last_token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The last text and why it ended."""
        reason = orjson.dumps(output.finish_reason)
        return [self._event(output, text, b',"finish_reason":%s,"stop_reason":null' % reason)]

    def closing(self, output_tokens: int) -> list[bytes]:
        """The usage, if it was asked for, and the end."""
        if not self._includes_usage:
            return [DONE]
        return [b'%s],"usage":%s}\n\n' % (self._start, self._usage(output_tokens)), DONE]

    def failure(self, refusal: Refusal, sent: int) -> list[bytes]:
        """The error as an event, and then the word that looks like success."""
        return [refusal.as_event, DONE]

    def _event(self, output: Output, text: str, end: bytes = b"") -> bytes:
        usage = b',"usage":%s' % self._usage(output.n_tokens) if self._is_continuous else b""
        said = orjson.dumps(text)
        return b'%s{"delta":{"content":%s}%s}]%s}\n\n' % (self._start, said, end, usage)

    def _usage(self, output_tokens: int) -> bytes:
        return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
            self._prompt_tokens,
            self._prompt_tokens + output_tokens,
            output_tokens,
        )


def _segment(ids: Sequence[int], text: str, duration_s: float) -> dict[str, Any]:
    return {
        "id": 0,
        "avg_logprob": -0.25,
        "compression_ratio": 1.0,
        "end": duration_s,
        "no_speech_prob": None,
        "seek": 0,
        "start": 0.0,
        "temperature": 0.0,
        "text": text,
        "tokens": ids,
    }
