"""What a request is taken to need and to cost while it waits: the predictions, put together.

It is weighed once, on arrival, and again only when a new policy prices or ranks it differently.
"""

from collections.abc import Mapping
from dataclasses import replace

from gateway.core import cost
from gateway.core.flows import Waiting
from gateway.core.messages import Request
from gateway.core.policy import Policy
from gateway.core.pool import Pool
from gateway.core.predict import Predictor

SHORTEST_OVERTAKES_TOKENS_PER_S = 100.0
"""`shortest`: so many predicted tokens weigh as much as one second of waiting, so that newcomers
overtake a long request only for a time in proportion to its length."""


def weigh(pool: Pool, predictor: Predictor, request: Request, *, sequence: int) -> Waiting:
    """`request` with its class, cost and deadline; `sequence` breaks ties of arrival instants."""
    prompt_tokens = predictor.prompt_tokens(request)
    output_tokens = predictor.output_tokens(request)
    kv_tokens = (prompt_tokens + output_tokens) * request.sequences
    waiting = Waiting(request, kind=pool.kind_of(request, kv_tokens), sequence=sequence)
    waiting.prompt_tokens = prompt_tokens
    waiting.output_tokens = output_tokens
    waiting.kv_tokens = kv_tokens
    _judge(waiting, pool.policy)
    if request.read_timeout_s is not None and not request.streams:
        # A plain client hears nothing before the end, and its clock runs.
        left_s = max(0.0, request.read_timeout_s - pool.service_s(waiting))
        waiting.deadline = min(waiting.deadline, request.arrived_at + left_s)
    return waiting


def reweigh(waiting: Waiting, policy: Policy, tier_of: Mapping[int, int]) -> None:
    """Rank and price it under a new policy; `tier_of` maps old ranks to new ones."""
    tier = tier_of[waiting.request.tier]
    if tier != waiting.request.tier:
        waiting.request = replace(waiting.request, tier=tier)
    deadline = waiting.deadline
    _judge(waiting, policy)
    waiting.deadline = deadline


def _judge(waiting: Waiting, policy: Policy) -> None:
    request = waiting.request
    waiting.cost = cost.estimated(policy, request, waiting.prompt_tokens, waiting.output_tokens)
    tier = policy.tiers[request.tier]
    arrived_at = request.arrived_at
    patience_s = tier.patience_s
    if request.is_continuation:
        patience_s = policy.continuation_wait_s
    elif request.patience_s is not None:
        patience_s = min(patience_s, request.patience_s)
    waiting.deadline = arrived_at + patience_s
    order = policy.within_user
    if order == "shortest":
        tokens = waiting.prompt_tokens + waiting.output_tokens * request.sequences
        waiting.key = arrived_at + tokens / SHORTEST_OVERTAKES_TOKENS_PER_S
    elif order == "deadline":
        target_s = request.ttft_target_s
        if target_s is None:
            target_s = patience_s if tier.ttft_target_ms is None else tier.ttft_target_ms / 1e3
        waiting.key = arrived_at + min(target_s, patience_s)
    else:
        waiting.key = arrived_at
