"""What a request is taken to need and to cost while it waits: the predictions, put together.

It is weighed once, on arrival, and again only when a new policy prices or ranks it differently.
"""

from collections.abc import Mapping
from dataclasses import replace

from gateway.core import cost
from gateway.core.fairqueue import Waiting, class_of
from gateway.core.messages import Request
from gateway.core.policy import Policy
from gateway.core.predict import Predictor


def weigh(policy: Policy, predictor: Predictor, request: Request, sequence: int) -> Waiting:
    """`request` with its class, cost and deadline; `sequence` breaks ties of arrival instants."""
    prompt_tokens = predictor.prompt_tokens(request)
    output_tokens = predictor.output_tokens(request)
    patience_s = policy.tiers[request.tier].patience_s
    if request.patience_s is not None:
        patience_s = min(patience_s, request.patience_s)
    return Waiting(
        request,
        kind=class_of(request, (prompt_tokens + output_tokens) * request.sequences),
        order=(request.arrived_at, sequence),
        cost=_estimate(policy, request, prompt_tokens, output_tokens),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        deadline=request.arrived_at + patience_s,
    )


def reweigh(waiting: Waiting, policy: Policy, tier_of: Mapping[int, int]) -> None:
    """Rank and price it under a new policy; `tier_of` maps old ranks to new ones."""
    tier = tier_of[waiting.request.tier]
    if tier != waiting.request.tier:
        waiting.request = replace(waiting.request, tier=tier)
    waiting.cost = _estimate(policy, waiting.request, waiting.prompt_tokens, waiting.output_tokens)


def _estimate(policy: Policy, request: Request, prompt_tokens: int, output_tokens: int) -> float:
    return cost.estimated(
        policy,
        sequences=request.sequences,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
