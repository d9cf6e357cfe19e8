"""The few bytes of an answer that may differ from the engine's: the alias, and the tier used.

Only requests that used an alias or named a `service_tier` come here; all others pass untouched.
"""

import re

import orjson

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_MODEL = re.compile(rb'("model"\s*:\s*)"(?:[^"\\]|\\.)*"')
_SERVICE_TIER = re.compile(rb'("service_tier"\s*:\s*)(?:null|"(?:[^"\\]|\\.)*")')
HELD_BYTES_MAX = 1 << 20
"""An event longer than this is passed on unchanged."""


class Rewrite:
    """Replaces the top-level `model` and `service_tier` of answers and of each event."""

    __slots__ = ("_held", "_model", "_service_tier")

    def __init__(self, *, model: str | None, service_tier: str | None) -> None:
        self._model = orjson.dumps(model) if model is not None else None
        self._service_tier = orjson.dumps(service_tier) if service_tier is not None else None
        self._held = b""

    def plain(self, body: bytes) -> bytes:
        """A whole JSON answer; anything that is not a JSON object passes unchanged."""
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return body
        if not isinstance(answer, dict):
            return body
        if self._model is not None and "model" in answer:
            answer["model"] = orjson.loads(self._model)
        if self._service_tier is not None:
            answer["service_tier"] = orjson.loads(self._service_tier)
        try:
            return orjson.dumps(answer)
        except TypeError:
            return body  # nested deeper than can be written

    def chunk(self, data: bytes) -> bytes:
        """Some bytes of an event stream: whole events leave, the rest is held back."""
        data = self._held + data
        cut = 0
        events = []
        for end in _EVENT_END.finditer(data):
            events.append(self._event(data[cut : end.end()]))
            cut = end.end()
        self._held = data[cut:]
        if len(self._held) > HELD_BYTES_MAX:
            events.append(self.rest())
        return b"".join(events)

    def rest(self) -> bytes:
        """What is still held back at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def _event(self, event: bytes) -> bytes:
        """One event. The engine writes `model` before any content, so the first match is it."""
        start = event.find(b"{")
        if start < 0 or event.startswith(b'data: {"error"'):
            return event
        model = self._model
        if model is not None:
            event = _MODEL.sub(lambda found: found[1] + model, event, count=1)
        tier = self._service_tier
        if tier is None:
            return event
        event, hits = _SERVICE_TIER.subn(lambda found: found[1] + tier, event, count=1)
        if hits:
            return event
        head, tail = event[: start + 1], event[start + 1 :]
        comma = b"" if tail.lstrip().startswith(b"}") else b","
        return head + b'"service_tier":' + tier + comma + tail
