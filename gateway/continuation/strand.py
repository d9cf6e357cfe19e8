"""A stream that may be gone on with elsewhere: its token ids are kept, and taken out of its bytes.

What leaves is what the engine would have sent had nobody asked for ids, byte for byte, in whole
events. Where to go on is the place up to which text was sent: an engine sends a token's text once
it is whole characters, so ids whose text has not come are generated again.
"""

import re

from msgspec import Raw

from gateway.continuation.chunks import ABSENT, Choice, Chunk, front_of, read_chunk
from gateway.continuation.obstacles import Obstacle
from gateway.continuation.rewrap import Rewrap, usage_of
from gateway.upstream.chunks import CR
from gateway.upstream.frames import end_of_events, events_in, read_event

IDS_BYTES_MAX = 1 << 20
"""Of prompt and output together, as text: some 200,000 ids."""
HELD_BYTES_MAX = 1 << 20
"""A longer event is passed on as it comes, and its stream is not continued."""
WINDOW_IDS = 32
"""So many ids tell whether a text ends within a character."""
DONE = b"data: [DONE]\n\n"

_ERROR = re.compile(rb'\s*\{\s*"error"\s*:\s*[^\sn]')
_IDS = re.compile(rb'("(?:prompt_)?token_ids"\s*:\s*)\[[\d,\s]*\]')


class Strand:
    """What is known of one stream, over all replicas that it ran on."""

    __slots__ = (
        "_doubt", "_front", "_head", "_held", "_ids", "_kept", "_kept_end", "_middle", "_prompt",
        "_rewrap", "_sent_tokens", "_tail", "_to_hide", "base_tokens", "error", "has_usage",
        "is_chat", "is_done", "is_finished", "is_greedy", "notes", "obstacle", "output_tokens",
        "prompt_tokens", "shows_ids",
    )  # fmt: skip

    def __init__(self, *, is_chat: bool, is_greedy: bool, shows_ids: bool) -> None:
        """`is_greedy`: the same ids would come again; `shows_ids`: the client asked for them."""
        self.is_chat = is_chat
        self.is_greedy = is_greedy
        self.shows_ids = shows_ids
        self.obstacle: Obstacle | None = None
        """Why it cannot be gone on with; None while it can."""
        self.error: bytes | None = None
        """Data of the engine's error event, which is held back; nothing after it passes."""
        self.is_finished = False
        """Whether the reason was sent for which the answer ends."""
        self.has_usage = False
        self.is_done = False
        """Whether `[DONE]` was passed on."""
        self.output_tokens = 0
        self.prompt_tokens = 0
        self.notes: list[bytes] = []
        """Comments to be sent before the end."""
        self._prompt: bytes | None = None
        self._ids = bytearray()
        """Each with a comma behind it."""
        self._kept = self._kept_end = 0
        """How many ids, and bytes of them, there were when text was last sent."""
        self._doubt = 0
        """How many of these came with that text; the text of some may have been still to come."""
        self.base_tokens = 0
        """How much of the output another replica was given as a prompt."""
        self._sent_tokens = 0
        """Most output there was at any break."""
        self._to_hide = 0
        """So many ids that come again were shown to the client already."""
        self._held = b""
        self._front = b""
        self._rewrap: Rewrap | None = None
        self._head = self._middle = self._tail = b""
        """Of the usual event, what stands before its text, between that and its ids, and after."""

    # While it runs.

    def chunk(self, data: bytes) -> bytes:
        """Some bytes of the engine's stream; returns what the client may have of them."""
        if self._held or not data.endswith(b"\n\n"):
            data = self._whole(data)
        if self.error is not None or not data:
            return b""
        if self._rewrap is None:
            usual = self._usual(data)
            if usual is not None:
                return usual
        return b"".join([self._event(event) for event in events_in(data)])

    @property
    def is_broken(self) -> bool:
        """Whether the engine gave up although its connection may be well."""
        return self.error is not None

    def ending(self) -> bytes:
        """What a stream lacks whose answer is complete."""
        end = b"".join(self.notes) + DONE
        if self.has_usage:
            return end
        self.has_usage = True
        usage = usage_of(self.prompt_tokens, self.output_tokens)
        return b'%b],"usage":%b}\n\n%b' % (self._front, usage, end)

    # When it broke.

    @property
    def part_tokens(self) -> int:
        """Output of the latest replica alone."""
        return self.output_tokens - self.base_tokens

    @property
    def kept_tokens(self) -> int:
        """Output with which another replica goes on."""
        return self._kept

    @property
    def doubtful_ids(self) -> int:
        """How many of the last kept ids may have text that was not sent; 0: none has."""
        return self._doubt if self._doubt > 1 else 0

    @property
    def can_go_on(self) -> bool:
        """Whether another replica could go on here, and something is missing."""
        return not self.is_finished and self.standing is None

    @property
    def standing(self) -> Obstacle | None:
        """What stands against going on here, with what has been seen so far."""
        if self.obstacle is None:
            if self._prompt is None:
                return Obstacle.NO_IDS
            sent = max(self.output_tokens, self._sent_tokens)
            if self.shows_ids and not self.is_greedy and sent > self._kept:
                return Obstacle.SHOWN
        return self.obstacle

    def window(self, dropped: int) -> bytes:
        """The inside of a JSON list of the last kept ids but `dropped`, and a few before."""
        ids = self._known().split(b",")
        return b",".join(ids[: len(ids) - dropped][-WINDOW_IDS:])

    def cut(self, dropped: int) -> bytes:
        """Let go of the last `dropped` kept ids; returns prompt and output to go on from."""
        assert dropped <= self._kept
        for _ in range(dropped):
            self._kept_end = self._ids.rfind(b",", 0, self._kept_end - 1) + 1
        self._kept -= dropped
        self._doubt = 0
        return self._known()

    def goes_on(self, note: bytes) -> None:
        """From now on `chunk` is fed a completion that goes on from what `cut` returned."""
        self._sent_tokens = max(self._sent_tokens, self.output_tokens)
        if self.shows_ids:
            self._to_hide = self._sent_tokens - self._kept
        del self._ids[self._kept_end :]
        self.output_tokens = self.base_tokens = self._kept
        self.error, self._held = None, b""
        self.notes.append(note)
        self._rewrap = Rewrap(
            front=self._front,
            is_chat=self.is_chat,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self._kept,
            told_tokens=self._sent_tokens,
        )

    def _known(self) -> bytes:
        assert self._prompt is not None
        ids = bytes(self._ids[: self._kept_end])
        return (self._prompt + b"," + ids if self._prompt else ids).removesuffix(b",")

    # Event by event.

    def _whole(self, data: bytes) -> bytes:
        """Hold back the beginning of an event at the end; return what is complete."""
        seen = len(self._held)
        data = self._held + data
        end = end_of_events(data, seen)
        self._held = data[end:]
        if len(self._held) <= HELD_BYTES_MAX:
            return data[:end]
        self.obstacle = self.obstacle or Obstacle.TOO_LONG
        self._held = b""
        return data

    def _usual(self, event: bytes) -> bytes | None:
        """One event that is like the last ones, by a few searches; None for any other bytes."""
        head, middle, tail = self._head, self._middle, self._tail
        if not head or not event.startswith(head) or not event.endswith(tail):
            return None
        start = len(head)
        end = event.rfind(middle, start)
        if end < 0 or event.find(b"\n") != len(event) - 2:
            return None
        quotes = event.count(b'"', start, end)
        if quotes and quotes != event.count(b'\\"', start, end):
            return None  # more than a text stands there
        begin = end + len(middle)
        # A slice must not end before it begins: mypyc's then is an error.
        ids = event[begin : max(begin, len(event) - len(tail))]
        if not ids.replace(b",", b"").isdigit():
            return None
        self._take(ids, end > start)
        if self.shows_ids:
            return event
        return b"%bnull%b" % (event[: begin - 1], tail[1:])

    def _event(self, event: bytes) -> bytes:
        """Any event."""
        if self.error is not None:
            return b""
        if self._rewrap is not None:
            event = self._rewrap.event(event)
        usual = None if self._to_hide else self._usual(event)
        if usual is not None:
            return usual
        payload = read_event(event)[1]
        if payload is None:
            return event
        if payload == b"[DONE]":
            return self._end(event)
        if _ERROR.match(payload):
            self.error = payload
            return b""
        chunk = read_chunk(payload)
        if chunk is None:
            self._cannot(Obstacle.PARSED)
            return event
        return self._chunk(event, chunk)

    def _end(self, event: bytes) -> bytes:
        if not self.is_finished and self.obstacle is None:
            self.error = b'{"error":{"message":"it ended without a reason","code":500}}'
            return b""
        self.is_done = True
        return b"".join(self.notes) + event

    def _chunk(self, event: bytes, chunk: Chunk) -> bytes:
        if not self._front:
            self._front = front_of(chunk)
        if chunk.prompt_token_ids is not None:
            self._take_prompt(chunk.prompt_token_ids)
        if not chunk.choices:
            self.has_usage |= chunk.usage is not None
            return event
        choice = chunk.choices[0]
        if len(chunk.choices) > 1 or choice.index:
            self._cannot(Obstacle.SEVERAL)
        if choice.prompt_token_ids is not None:
            self._take_prompt(choice.prompt_token_ids)
        is_last = bytes(choice.finish_reason) != b"null"
        self._take_choice(choice, is_last=is_last)
        self.is_finished |= is_last
        if not is_last and choice.token_ids and choice.prompt_token_ids is None:
            self._learn(event, choice)
        if self.shows_ids:
            return self._unseen(event, choice) if self._to_hide and choice.token_ids else event
        if not is_last and choice.delta is not None and not choice.delta and choice.token_ids:
            return b""  # sent for the sake of its ids alone
        return _IDS.sub(rb"\1null", event)

    def _unseen(self, event: bytes, choice: Choice) -> bytes:
        """An event without the ids that the client was shown before."""
        assert choice.token_ids is not None
        hidden = min(self._to_hide, len(choice.token_ids))
        self._to_hide -= hidden
        return _IDS.sub(rb"\1[%b]" % _listed(choice.token_ids[hidden:]), event)

    def _take_choice(self, choice: Choice, *, is_last: bool) -> None:
        text = bytes(choice.text)
        if self.is_chat:
            delta = choice.delta or {}
            text = bytes(delta.get("content", ABSENT))
            obstacle = _obstacle_in(delta)
            if obstacle is None and text in (b"", b"null") and not (is_last or "role" in delta):
                obstacle = Obstacle.PARSED
            if obstacle is not None:
                self._cannot(obstacle)
        if bytes(choice.logprobs) != b"null":
            self._cannot(Obstacle.LOGPROBS)
        has_text = text not in (b"", b"null", b'""')
        if choice.token_ids:
            self._take(_listed(choice.token_ids), has_text)
        elif has_text:
            self._cannot(Obstacle.NO_IDS)

    def _take_prompt(self, ids: list[int]) -> None:
        if self._prompt is None:
            self._prompt = _listed(ids)
            self.prompt_tokens = len(ids)
            if len(self._prompt) > IDS_BYTES_MAX:
                self._forget()

    def _take(self, ids: bytes, has_text: bool) -> None:
        count = ids.count(b",") + 1
        self.output_tokens += count
        if self.obstacle is not None:
            return
        self._ids += ids
        self._ids += b","
        if has_text:
            self._kept, self._kept_end, self._doubt = self.output_tokens, len(self._ids), count
        if len(self._ids) + len(self._prompt or b"") > IDS_BYTES_MAX:
            self._forget()

    def _forget(self) -> None:
        self._cannot(Obstacle.TOO_LONG)
        self._prompt = b""

    def _cannot(self, obstacle: Obstacle) -> None:
        if self.obstacle is None:
            self.obstacle = obstacle
        self._ids.clear()

    def _learn(self, event: bytes, choice: Choice) -> None:
        """See how the usual event of this stream looks, to know the next ones by it."""
        text = choice.delta.get("content", ABSENT) if choice.delta is not None else choice.text
        name = b'"content":' if choice.delta is not None else b'"text":'
        assert choice.token_ids is not None
        value = bytes(text)
        ids = b'"token_ids":[%b]' % _listed(choice.token_ids)
        at = event.find(name + value)
        end = at + len(name) + len(value) - 1
        ids_at = event.find(ids, end)
        is_usual = at >= 0 and ids_at >= 0 and value.startswith(b'"') and event.endswith(b"\n\n")
        if is_usual and event.startswith(b"data:") and CR not in event:
            self._head = event[: at + len(name) + 1]
            self._middle = event[end : ids_at + len(b'"token_ids":[')]
            self._tail = event[ids_at + len(ids) - 1 :]


def _listed(ids: list[int]) -> bytes:
    return b",".join([b"%d" % each for each in ids])


def _obstacle_in(delta: dict[str, Raw]) -> Obstacle | None:
    """What a delta holds beside a role and a text."""
    for name, value in delta.items():
        if name in ("role", "content") or bytes(value) in (b"null", b"[]", b'""'):
            continue
        if name.startswith("reasoning"):
            return Obstacle.REASONING
        return Obstacle.TOOL_CALL if name in ("tool_calls", "function_call") else Obstacle.PARSED
    return None
