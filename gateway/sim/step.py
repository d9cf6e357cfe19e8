"""What one step of an engine is, and what came of all of them. Decides nothing."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What the step in flight computes."""

    duration_s: float
    prefill_tokens: int
    decodes: int
    kv_tokens: int
    """KV tokens that the decodes read."""
    admitted: tuple[str, ...]
    """Sequences that left the waiting queue for this step, preempted ones included."""


class Changed(NamedTuple):
    """Whom a step changed."""

    begun: list[str]
    """Sequences that got their first token; of those without output, that are through."""
    finished: list[str]


@dataclass(slots=True)
class Counters:
    """Totals since the engine began. A prompt counts once, when its first token comes."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    resumptions: int = 0
    """Preempted sequences taken up again; vLLM's metric rises only here."""
    finished: int = 0
    aborted: int = 0
    cached_tokens: int = 0
    """Of prompts, that were not computed because the prefix cache had them."""
