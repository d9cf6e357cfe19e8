"""How long a step of the paper's engines takes: Vidur's estimate for Llama-2-7B on an A100.

Knows nothing of queues. The coefficients are those of `gateway.sim.profiles`; what is added here is
how Vidur rounds, and where the authors' table of predictions ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.sim.paper.request import Request
from gateway.sim.profiles import A100_LLAMA2_7B, Profile

TOKENS_ROUNDED_TO = 8
KV_ROUNDED_TO = 64
SEQUENCES_PREDICTED = 32
"""The authors' runs predict decode attention for at most so many sequences and charge a larger
batch as if it had no more. A llumlet's batches are far larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step, from its batch."""

    profile: Profile = A100_LLAMA2_7B
    sequences_charged_max: int | None = SEQUENCES_PREDICTED
    """How many decoding sequences are charged for their attention; None: all of them."""

    def step_s(self, batch: Sequence[Request]) -> float:
        """Whole prefills and single decodes together; time grows with the batch only."""
        prefill_tokens = pairs = decodes = kv_tokens = 0
        for request in batch:
            if request.is_decoding:
                decodes += 1
                kv_tokens += request.computed_tokens
            else:
                prefill_tokens += request.prefill_tokens
                pairs += request.prefill_tokens * request.prefill_tokens
        charged, charged_kv = decodes, 0
        if decodes:
            if self.sequences_charged_max is not None:
                charged = min(decodes, self.sequences_charged_max)
            charged_kv = charged * _rounded_up(kv_tokens // decodes, KV_ROUNDED_TO)
        return self.profile.step_s(
            _rounded_up(prefill_tokens + decodes, TOKENS_ROUNDED_TO),
            decodes=charged,
            kv_tokens=charged_kv,
            attended=pairs // 2,
        )


def _rounded_up(value: int, to: int) -> int:
    return -(-value // to) * to
