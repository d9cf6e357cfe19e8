"""Engines as far as the scheduler can see them: slots, a queue, a pace, and what a scrape shows.

They know no clock and no scheduler: whoever drives them says when.
"""

from collections import deque
from dataclasses import dataclass

from gateway.core.messages import Usage
from gateway.core.report import ReplicaReport

SLOTS = 32
TPOT_S = 0.03
PREFILL_S = 0.02
"""Of an empty prompt; `PREFILL_TOKENS_PER_S` comes on top."""
PREFILL_TOKENS_PER_S = 8_000.0
KV_CAPACITY_TOKENS = 121_600
"""7,600 blocks of 16 tokens: Llama-2-7B on 80 GB."""


@dataclass(slots=True)
class Served:
    """A request that an engine holds."""

    id: str
    tier: int
    prompt_tokens: int
    output_tokens: int
    """How many it will have produced at its end."""
    first_at: float | None = None

    def produced(self, now: float) -> int:
        """Output tokens so far."""
        if self.first_at is None:
            return 0
        return min(self.output_tokens, 1 + int((now - self.first_at) / TPOT_S))

    @property
    def prefill_s(self) -> float:
        """From its slot to its first token."""
        return PREFILL_S + self.prompt_tokens / PREFILL_TOKENS_PER_S

    @property
    def decode_s(self) -> float:
        """From its first token to its last."""
        return (self.output_tokens - 1) * TPOT_S

    @property
    def usage(self) -> Usage:
        """What the engine reports at the end."""
        return Usage(prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens)


class Engine:
    """One replica: runs up to `SLOTS` requests, the others wait in it first come, first served."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running: dict[str, Served] = {}
        self.waiting: deque[Served] = deque()
        self._ended_prompt_tokens = 0
        self._ended_output_tokens = 0
        self._ended = 0

    def join(self, served: Served) -> bool:
        """Take it in; whether it has a slot at once."""
        if len(self.running) < SLOTS:
            self.running[served.id] = served
            return True
        self.waiting.append(served)
        return False

    def end(self, request_id: str) -> Served | None:
        """Free its slot; the one that takes it over, if one waited."""
        ended = self.running.pop(request_id)
        self._ended += 1
        self._ended_prompt_tokens += ended.prompt_tokens
        self._ended_output_tokens += ended.output_tokens
        if not self.waiting:
            return None
        successor = self.waiting.popleft()
        self.running[successor.id] = successor
        return successor

    def take_back(self, request_id: str) -> bool:
        """Remove it if it still waits here; whether it did."""
        for served in self.waiting:
            if served.id == request_id:
                self.waiting.remove(served)
                return True
        return False

    def progress(self, now: float) -> dict[str, int]:
        """Output tokens so far of all that have any, by request id."""
        return {
            served.id: served.produced(now)
            for served in self.running.values()
            if served.first_at is not None
        }

    def report(self, now: float) -> ReplicaReport:
        """A scrape in which gauges and counters agree with what was done here."""
        begun = [served for served in self.running.values() if served.first_at is not None]
        output_tokens = self._ended_output_tokens + sum(one.produced(now) for one in begun)
        prompt_tokens = self._ended_prompt_tokens + sum(one.prompt_tokens for one in begun)
        held = sum(one.prompt_tokens + one.produced(now) for one in self.running.values())
        first_tokens = self._ended + len(begun)
        prefill_s = first_tokens * PREFILL_S + prompt_tokens / PREFILL_TOKENS_PER_S
        return ReplicaReport(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_use=min(1.0, held / KV_CAPACITY_TOKENS),
            kv_capacity_tokens=KV_CAPACITY_TOKENS,
            itl_sum_s=(output_tokens - first_tokens) * TPOT_S,
            itl_count=output_tokens - first_tokens,
            ttft_sum_s=prefill_s,
            ttft_count=first_tokens,
            prefill_sum_s=prefill_s,
            prefill_count=first_tokens,
            prompt_tokens=prompt_tokens,
            generation_tokens=output_tokens,
            iterations=int(now / TPOT_S),
            preemptions=0.0,
        )
