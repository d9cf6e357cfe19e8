"""What an engine is configured with: its limits, and how it forms its batches.

The flags give four styles. Mixed and chunked is vLLM's V1 scheduler; with a smaller budget it is
Sarathi-Serve (Agrawal et al., OSDI'24). Mixed, with whole prompts and KV set aside up to the limit,
is Orca (Yu et al., OSDI'22). Whole prompts before everything that decodes is vLLM as it was at
first and as Vidur has it (Agrawal et al., MLSys'24).
"""

from dataclasses import dataclass, replace
from typing import Literal

SchedulingPolicy = Literal["fcfs", "priority"]
Style = Literal["vllm", "vllm-vidur", "orca", "sarathi"]

SARATHI_BUDGET_TOKENS = 512
"""Tokens of a step; the chunk size of Sarathi-Serve's evaluation, and Vidur's default."""
UNBOUNDED_TOKENS = 1 << 30
"""Orca counts sequences, not tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The limits of one engine, and how it forms its batches."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_blocks: int = 7_600
    block_tokens: int = 16
    watermark_blocks: int = 0
    """Blocks an admission must leave free while others run."""
    policy: SchedulingPolicy = "fcfs"
    mixed: bool = True
    """Whether one step has both, prompts and tokens of those that decode."""
    chunked: bool = True
    """Whether a prompt may be spread over steps; else one that is larger than the budget comes
    alone."""
    prefill_first: bool = False
    """Where a step is not mixed: whether whoever can be admitted goes before those that decode, or
    has to wait until all of them are through (static batching)."""
    reserved_tokens: int = 0
    """Prompt and output for which each admission sets KV aside, as Orca does: nobody is ever
    preempted. 0: blocks are taken as tokens come."""
    prefix_block_tokens: int = 0
    """Tokens that one id of `Sequence.prefix` stands for; 0: nothing is cached."""

    def __post_init__(self) -> None:
        assert self.max_num_seqs >= 1
        assert self.max_num_batched_tokens >= 1
        assert self.kv_blocks >= 1
        assert self.block_tokens >= 1
        assert self.prefix_block_tokens % self.block_tokens == 0
        assert not (self.mixed and self.prefill_first), "a mixed step has both"

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold `tokens`."""
        return -(-tokens // self.block_tokens)

    def styled(self, style: Style, *, longest_tokens: int = 4_096) -> "EngineConfig":
        """The same engine with the batches of `style`.

        `longest_tokens`: prompt and output of the longest sequence, for which Orca sets KV aside.
        """
        if style == "vllm-vidur":
            return replace(self, mixed=False, chunked=False, prefill_first=True)
        if style == "orca":
            return replace(
                self,
                chunked=False,
                reserved_tokens=longest_tokens,
                max_num_batched_tokens=UNBOUNDED_TOKENS,
            )
        if style == "sarathi":
            return replace(self, max_num_batched_tokens=SARATHI_BUDGET_TOKENS)
        return self
