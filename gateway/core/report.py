"""What engines report of themselves, in common units whatever they are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """One data-parallel engine among several behind one address."""

    sequences: int
    """Running and waiting."""
    steps: float
    """So far; grows while it does anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """One scrape of an engine's metrics in common units. None means unknown, never zero.

    Counters are totals since the engine started; the ledger forms the differences.
    With data parallelism gauges and counters are summed over the engines, KV use is their mean.
    """

    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    """0..1"""
    kv_capacity_tokens: int | None = None
    engines: int = 1
    slots: int | None = None
    """Where the engine says it (SGLang, TGI, llama.cpp); vLLM does not."""
    itl_sum_s: float | None = None
    itl_count: float | None = None
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    prefill_sum_s: float | None = None
    prefill_count: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    iterations: float | None = None
    """Engine steps so far: the sign of life that `/health` is not."""
    preemptions: float | None = None
    ranks: tuple[Rank, ...] = ()
    """One by one, in a fixed order; empty where there is one engine, or nothing is told of each."""
    missing: tuple[str, ...] = ()
    """Names this engine's dialect expects and did not find: shown to the operator."""
