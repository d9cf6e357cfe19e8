"""The few bytes of an answer that may differ from the engine's.

They are the alias, the tier used, and the usage that only the gateway asked for. Single members
are changed in place; every other byte stays as it came.
"""

import re
from typing import Any

import orjson

from gateway.api.whole import HELD_BYTES_MAX, WholeEvents
from gateway.upstream.chunks import CR
from gateway.upstream.frames import events_in, read_event
from gateway.upstream.json_text import member, with_value, without
from gateway.upstream.sse import USAGE, Events

FINGERPRINT_BYTES_MAX = 256

_DATA = re.compile(rb"data: ?([^\r\n]*)")
_DATA_AHEAD = re.compile(rb"[\r\n](?=data:)")
_MORE_DATA = re.compile(rb"(?:\r\n|\n|\r)data:[^\r\n]*")
_INSIDE = {
    None: b"",
    Events.CHUNKS: b"",
    Events.RESPONSE: b'"response"',
    Events.MESSAGE: b'"message"',
}
"""The member that holds `model` and `service_tier` where an event itself does not."""
_FINISH_REASON = b'"finish_reason"'
_NO_REASON = b'"finish_reason":null'
_STRING_NEXT = re.compile(rb'\s*:\s*"')
_NULL_USAGE = b',"usage":null}\n\n'
_HEADS = re.compile(
    rb"(data: ?\{)"
    rb'((?:"(?:id|object)":"[^"\\]*",|"created":\d+,)*+"model":)("[^"\\]*")'
)
"""How chunks begin (vLLM, SGLang, TGI): up to `model` there are only scalars."""
_TAILS = re.compile(rb'"model":"[^"\\]*"((?:,"[^"\\]*":(?:"[^"\\]*"|[\w.+-]+))*+\}\n\n)')
"""How chunks end where `choices` come first (llama.cpp): from `model` there are only scalars."""


class Rewrite:
    """Changes the `model` and `service_tier` of answers and of each event, and strips usage."""

    __slots__ = (
        "_added", "_drops_lf", "_finished", "_head", "_inside", "_model", "_renames", "_strips",
        "_tail", "_tier", "_whole", "fingerprint",
    )  # fmt: skip

    def __init__(
        self,
        *,
        model: str | None,
        service_tier: str | None,
        strips_usage: bool = False,
        events: Events | None = Events.CHUNKS,
    ) -> None:
        self._model = orjson.dumps(model) if model is not None else None
        self._tier = orjson.dumps(service_tier) if service_tier is not None else None
        self._renames = model is not None or service_tier is not None
        self._strips = strips_usage and events is Events.CHUNKS
        self._inside = _INSIDE[events]
        self._added = b'"service_tier":%b,' % self._tier if self._tier is not None else b""
        named = rb"\3" if self._model is None else _escaped(self._model)
        self._head = b"\\1%b\\2%b" % (_escaped(self._added), named)
        self._tail = b'"model":%b\\1' % _escaped(self._model or b"")
        self._whole = WholeEvents()
        self._finished: list[bytes] = []
        """Chunks that end a choice: with the usage asked for, vLLM puts into the usage chunk what
        else stands in them."""
        self.fingerprint: bytes | None = None
        """The member, with a comma before it, that the engine moves from the end of each choice
        into the usage chunk; as it was told last, be it of another stream."""
        self._drops_lf = False
        """The last line end removed was a CR, an LF may belong to it."""

    def plain(self, body: bytes) -> bytes:
        """A whole JSON answer; anything that is not a JSON object passes unchanged."""
        if not self._renames or _object_in(body) is None:
            return body
        return self._named(body, body.index(b"{"))

    def chunk(self, data: bytes) -> bytes:
        """Some bytes of an event stream: whole events leave, the rest is held back.

        Only a chunk that ends a choice waits for the event after it, where usage is stripped.
        """
        if self._drops_lf and data:
            self._drops_lf = False
            data = data.removeprefix(b"\n")
        if self._whole.held or not data.endswith(b"\n\n"):
            data = self._whole.chunk(data)
        if not self._finished:
            clean = self._quick(data)
            if clean is not None:
                return clean
        return b"".join([*map(self._event, events_in(data))])

    def waiting(self) -> bytes:
        """Whole events that are still held back, however the stream ended."""
        return b"".join(self._ended())

    def rest(self) -> bytes:
        """All that is still held back at the end of a stream that ended well."""
        rest = self.waiting() + self._whole.held
        self._whole.held = b""
        return rest

    def _quick(self, data: bytes) -> bytes | None:
        """Whole events in their new form where a few searches tell it; None where they do not."""
        if self._strips:
            if data.find(USAGE) >= 0:
                if not _are_chunks(data):
                    return None
                data = data.replace(_NULL_USAGE, b"}\n\n")
                if data.find(USAGE) >= 0:
                    return None
            at = data.rfind(_FINISH_REASON)
            if at >= 0 and not data.startswith(_NO_REASON, at):
                return None
            # Of several choices one may have ended before another goes on in the same read.
            if data.find(_FINISH_REASON) != at and (
                data.count(_FINISH_REASON) != data.count(_NO_REASON)
            ):
                return None
        if not self._renames:
            return data
        if self._inside:
            return None if data.find(self._inside) >= 0 else data
        if CR in data or data.find(b'"service_tier"') >= 0 or data.find(b'"error"') >= 0:
            return None
        if data.find(b"\n") == len(data) - 2 and (head := _HEADS.match(data)) is not None:
            start, name, value = head.end(1), head.start(3), head.end(3)
            model = self._model or head[3]
            return b"%b%b%b%b%b" % (
                data[:start], self._added, data[start:name], model, data[value:]
            )  # fmt: skip
        new, hits = _HEADS.subn(self._head, data)
        if hits == 0 and self._tier is None:
            new, hits = _TAILS.subn(self._tail, data)
        are_all = (
            data.startswith(b"data:")
            and data.count(b"\n\ndata:") == hits - 1
            and data.count(b"\n") == 2 * hits
        )
        return new if are_all else None

    def _event(self, event: bytes) -> bytes:
        """What leaves instead of one event, with what waited for it."""
        event = self._changed(event)
        finished = self._finished
        if (
            self._strips
            and _is_finished(event)
            and sum(map(len, finished)) + len(event) <= HELD_BYTES_MAX
        ):
            finished.append(event)
            return b""
        return b"".join([*self._ended(), event]) if finished else event

    def _ended(self) -> list[bytes]:
        """The chunks that end a choice as they are without usage; they wait no more."""
        finished, addition = self._finished, self.fingerprint
        self._finished = []
        if addition is None:
            return finished
        return [_with_last(each, addition) for each in finished]

    def _changed(self, event: bytes) -> bytes:
        """One event in its new form."""
        has_usage = self._strips and event.find(USAGE) >= 0
        if not has_usage and (not self._renames or event.find(self._inside) < 0):
            return event
        line = _first_data(event)
        if line is None:
            return event
        fields = _object_in(read_event(event)[1] or b"")
        if fields is None:
            return event
        text = line[1] if event.count(b"data:") == 1 else _unfolded(event)
        new = text
        if has_usage:
            if fields.get("choices") == [] and isinstance(fields.get("usage"), dict):
                return self._removed(event, text)
            new = without(new, new.index(b"{"), b"usage")
        if self._renames and fields.get("error") is None:
            new = self._renamed(new)
        if new == text:
            return event
        return event[: line.start(1)] + new + _MORE_DATA.sub(b"", event[line.end() :])

    def _removed(self, event: bytes, text: bytes) -> bytes:
        """Nothing, but line ends that belong to the event before; that gets the fingerprint."""
        at = text.index(b"{")
        found = member(text, at, b"system_fingerprint")
        if found is not None and found.end - found.start <= FINGERPRINT_BYTES_MAX:
            self.fingerprint = b"," + text[found.start : found.end]
        else:
            self.fingerprint = None
        self._drops_lf = event.endswith(b"\r")
        return event[: len(event) - len(event.lstrip(b"\r\n"))]

    def _renamed(self, text: bytes) -> bytes:
        """The JSON of one event with the alias and the tier in their place."""
        at = text.index(b"{")
        if self._inside:
            found = member(text, at, self._inside[1:-1])
            if found is None or not text.startswith(b"{", found.value):
                return text
            at = found.value
        return self._named(text, at)

    def _named(self, text: bytes, at: int) -> bytes:
        """`text` with the alias and the tier in the object that opens at `at`."""
        if self._model is not None:
            text = with_value(text, at, b"model", self._model, adds=False)
        if self._tier is not None:
            text = with_value(text, at, b"service_tier", self._tier, adds=True)
        return text


def _escaped(text: bytes) -> bytes:
    """`text` as it stands in a replacement, where a backslash refers to a group."""
    return text.replace(b"\\", rb"\\")


def _are_chunks(data: bytes) -> bool:
    """Whether `data` is nothing but events of one line that holds an object."""
    count = data.count(b"\n\n")
    return (
        data.startswith(b"data: {")
        and data.count(b"\n\ndata: {") == count - 1
        and data.count(b"\n") == 2 * count
    )


def _is_finished(event: bytes) -> bool:
    """Whether `event` ends a choice without a fingerprint."""
    at = event.rfind(_FINISH_REASON)
    return (
        at >= 0
        and _STRING_NEXT.match(event, at + len(_FINISH_REASON)) is not None
        and event.find(b'"system_fingerprint"') < 0
    )


def _with_last(event: bytes, addition: bytes) -> bytes:
    """`event` with one more member at the end of its object."""
    at = event.rfind(b"}")
    return event[:at] + addition + event[at:]


def _first_data(event: bytes) -> re.Match[bytes] | None:
    """The first line of data."""
    if event.startswith(b"data:"):
        return _DATA.match(event)
    ahead = _DATA_AHEAD.search(event)
    return _DATA.match(event, ahead.end()) if ahead is not None else None


def _unfolded(event: bytes) -> bytes:
    """The data of `event` in one line: in JSON a line break means nothing."""
    data = read_event(event)[1] or b""
    return data.replace(b"\n", b"")


def _object_in(text: bytes) -> dict[str, Any] | None:
    """The JSON object that `text` is; None where it is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
