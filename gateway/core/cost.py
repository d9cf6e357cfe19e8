"""What a request is charged: an estimate at its release, the truth at its end.

`requests` counts sequences, the round robin of request queues; `tokens` is the service of VTC
(arXiv 2401.00588), `w_p * prompt + w_q * output`, cached prompt tokens cheaper. The difference
between estimate and truth is settled when the request ends, as in Kubernetes' API Priority and
Fairness (KEP-1040).
"""

from gateway.core.messages import Outcome, Usage
from gateway.core.policy import Policy


def estimated(policy: Policy, *, sequences: int, prompt_tokens: int, output_tokens: int) -> float:
    """Charge at release. `output_tokens` is the prediction for one sequence."""
    if policy.cost == "requests":
        return float(sequences)
    weights = policy.weights
    return weights.prompt * prompt_tokens + weights.output * output_tokens * sequences


def produced(policy: Policy, *, sequences: int, prompt_tokens: int, output_tokens: int) -> float:
    """What a running request has cost so far; `output_tokens` is the sum over its sequences."""
    if policy.cost == "requests":
        return float(sequences)
    return policy.weights.prompt * prompt_tokens + policy.weights.output * output_tokens


def settled(
    policy: Policy,
    *,
    outcome: Outcome,
    sequences: int,
    usage: Usage,
    prefilled: float = 1.0,
) -> float:
    """Charge at the end, replacing the estimate.

    `prefilled` in 0..1 is the share of the prompt that a cancelled request made the engine
    compute. What failed through no fault of the client is free; what the engine rejected too.
    """
    if outcome in (Outcome.FAILED, Outcome.REJECTED):
        return 0.0
    if policy.cost == "requests":
        return float(sequences)
    weights = policy.weights
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    prompt_cost = weights.prompt * (usage.prompt_tokens - cached) + weights.cached * cached
    if outcome is Outcome.CANCELLED:
        prompt_cost *= min(1.0, max(0.0, prefilled))
    return prompt_cost + weights.output * usage.output_tokens
