"""What a request is charged: an estimate at its release, the truth at its end.

`requests` counts sequences, the round robin of request queues; `tokens` is the service of VTC
(arXiv 2401.00588), `w_p * prompt + w_q * output`, cached prompt tokens cheaper; `gpu_seconds` is
a linear model of the engine's step time; `price` is what the model's tokens are sold for. The
difference between estimate and truth is settled when the request ends, as in Kubernetes' API
Priority and Fairness (KEP-1040).
"""

from gateway.core.messages import Outcome, Request, Usage
from gateway.core.policy import Policy

FREE = (Outcome.FAILED, Outcome.REJECTED)
"""What failed through no fault of the client costs nothing; what the engine rejected neither."""


def estimated(policy: Policy, request: Request, prompt_tokens: int, output_tokens: int) -> float:
    """Charge at release. `output_tokens` is the prediction for one sequence."""
    prompt = 0 if request.is_continuation else prompt_tokens
    return of_tokens(policy, request, prompt=prompt, output=output_tokens * request.sequences)


def produced(policy: Policy, request: Request, prompt_tokens: int, output_tokens: int) -> float:
    """What a running request has cost so far; `output_tokens` is the sum over its sequences."""
    prompt = 0 if request.is_continuation else prompt_tokens
    return of_tokens(policy, request, prompt=prompt, output=output_tokens)


def settled(
    policy: Policy, request: Request, outcome: Outcome, *, usage: Usage, prefilled: float = 1.0
) -> float:
    """Charge at the end, replacing the estimate.

    `prefilled` in 0..1 is the share of the prompt that a cancelled request made the engine
    compute.
    """
    if outcome in FREE or (request.is_continuation and policy.cost == "requests"):
        return 0.0  # the rest of a stream is no further request
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    share = 0.0 if request.is_continuation else 1.0
    if outcome is Outcome.CANCELLED:
        share *= min(1.0, max(0.0, prefilled))
    fresh = usage.prompt_tokens - cached
    return of_tokens(
        policy, request, prompt=share * fresh, output=usage.output_tokens, cached=share * cached
    )


def of_tokens(
    policy: Policy, request: Request, *, prompt: float, output: float, cached: float = 0.0
) -> float:
    """Cost of so many tokens of each kind; `prompt` are those not found in a cache."""
    kind, weights = policy.cost, policy.weights
    if kind == "tokens":
        return weights.prompt * prompt + weights.output * output + weights.cached * cached
    if kind == "requests":
        return float(request.sequences)
    cheap = weights.cached / weights.prompt * cached if weights.prompt else 0.0
    if kind == "gpu_seconds":
        gpu = policy.gpu_time
        # Every output token attends to the prompt and, on average, to half of the output.
        context = prompt + cached + output / request.sequences / 2
        return gpu.prompt_s * (prompt + cheap) + output * (gpu.output_s + gpu.kv_s * context)
    price = policy.prices.get(request.model)
    if price is None:
        return weights.prompt * prompt + weights.output * output + weights.cached * cached
    return (price.input * (prompt + cheap) + price.output * output) / 1e6
