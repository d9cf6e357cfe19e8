"""What a request will need, before anybody knows: prompt tokens from bytes, output from history.

No tokenizer runs in the hot path; both figures are learnt from the usage that engines report and
are wrong by design, which is why charges are settled at the end.
"""

from collections import OrderedDict
from typing import TypeVar

from gateway.core.messages import Request, Usage
from gateway.core.rates import Mean

Key = TypeVar("Key")

BYTES_PER_TOKEN = 4.0
"""Start value for English text in common tokenizers; the ratio is then learnt per model."""
OUTPUT_TOKENS_UNSEEN = 256
"""Predicted output of a client never seen before that set no max_tokens."""
LEARNING_SHARE = 0.2
RATIO_PROMPT_TOKENS_MIN = 16
"""Shorter prompts say nothing of the ratio: their body is mostly JSON."""


class Predictor:
    """Learns from settled requests; holds at most `entries_max` histories, oldest dropped."""

    __slots__ = ("_entries_max", "_output", "_tokens_per_byte")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._output: OrderedDict[tuple[str, ...], Mean] = OrderedDict()
        self._tokens_per_byte: OrderedDict[str, Mean] = OrderedDict()

    def prompt_tokens(self, request: Request) -> int:
        """Prompt tokens of `request`: its own figure if it has one, else bytes x learnt ratio."""
        if request.prompt_tokens is not None:
            return request.prompt_tokens
        learnt = self._tokens_per_byte.get(request.model)
        ratio = 1.0 / BYTES_PER_TOKEN
        if learnt is not None and learnt.value is not None:
            ratio = learnt.value
        return max(1, round(request.body_bytes * ratio))

    def output_tokens(self, request: Request) -> int:
        """Output tokens per sequence, at most the request's own maximum."""
        limit = request.output_tokens_max
        if limit == 0:
            return 0
        learnt = self._output.get(self._key(request))
        if learnt is None or learnt.value is None:
            expected = OUTPUT_TOKENS_UNSEEN
        else:
            expected = max(1, round(learnt.value))
        return expected if limit is None else min(expected, limit)

    def learn(self, request: Request, usage: Usage) -> None:
        """Take in what `request` really used."""
        if request.output_tokens_max != 0:
            mean = self._remembered(self._output, self._key(request))
            mean.add(usage.output_tokens / request.sequences)
        if request.body_bytes and usage.prompt_tokens >= RATIO_PROMPT_TOKENS_MIN:
            mean = self._remembered(self._tokens_per_byte, request.model)
            mean.add(usage.prompt_tokens / request.body_bytes)

    @staticmethod
    def _key(request: Request) -> tuple[str, ...]:
        return (request.model, request.tenant, request.user, request.route)

    def _remembered(self, table: OrderedDict[Key, Mean], key: Key) -> Mean:
        mean = table.get(key)
        if mean is None:
            mean = table[key] = Mean(LEARNING_SHARE)
            if len(table) > self._entries_max:
                table.popitem(last=False)
        else:
            table.move_to_end(key)
        return mean
