"""Requests of other gateways as a leader's scheduler has them: their ids, tiers and instants.

There a request carries its gateway's name before its id, and a tier has the rank that its name has
here. What becomes of them is not known here.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from gateway.cluster.messages import Happening
from gateway.core.messages import (
    Bounced,
    Cancelled,
    Event,
    Finished,
    FirstToken,
    PolicyChanged,
    Progressed,
    RecallDone,
    RecallTooLate,
    Request,
)
from gateway.core.policy import Policy

SEPARATOR: Final = "/"


def inner_id(gateway: str, request_id: str) -> str:
    """The id of a guest's request inside the leader's scheduler."""
    return f"{gateway}{SEPARATOR}{request_id}"


def inner_request(request: Request, gateway: str, arrived_at: float, *, tier: int) -> Request:
    """The request as the leader's scheduler sees it, in a tier of its own."""
    # Written out: `dataclasses.replace` takes ten times as long, for every request.
    return Request(
        id=inner_id(gateway, request.id),
        model=request.model,
        tier=tier,
        tenant=request.tenant,
        user=request.user,
        arrived_at=arrived_at,
        prompt_tokens=request.prompt_tokens,
        output_tokens_max=request.output_tokens_max,
        sequences=request.sequences,
        streams=request.streams,
        body_bytes=request.body_bytes,
        patience_s=request.patience_s,
        route=request.route,
        excluded=request.excluded,
        only=request.only,
        prefix=request.prefix,
        session=request.session,
        read_timeout_s=request.read_timeout_s,
        ttft_target_s=request.ttft_target_s,
        is_continuation=request.is_continuation,
        is_continuable=request.is_continuable,
        caps=request.caps,
    )


def ranks_after(old: Policy, event: PolicyChanged) -> tuple[int, ...]:
    """By the rank that a tier has in `old` the one that its requests have from now on."""
    rank_of = {tier.name: rank for rank, tier in enumerate(event.policy.tiers)}
    return tuple(rank_of[event.moved_to.get(tier.name, tier.name)] for tier in old.tiers)


def ranked(request: Request, ranks: tuple[int, ...]) -> Request:
    """The same request in the tier that it has by now."""
    rank = ranks[request.tier]
    return request if rank == request.tier else replace(request, tier=rank)


def inner_event(event: Happening, gateway: str, now: float, ago_s: float | None) -> Event:
    """The event as the leader's scheduler hears it, at the leader's own instants."""
    match event:
        case Progressed():
            return Progressed(
                event.replica,
                {inner_id(gateway, each): tokens for each, tokens in event.output_tokens.items()},
                None if ago_s is None else now - ago_s,
                frozenset(_inner_ids(gateway, event.held)),
            )
        case Finished():
            return Finished(
                inner_id(gateway, event.request_id),
                event.outcome,
                event.usage,
                event.tpot_s,
                fault=event.fault,
                goes_on=event.goes_on,
            )
        case FirstToken() | Bounced() | RecallDone() | RecallTooLate() | Cancelled():
            return type(event)(inner_id(gateway, event.request_id))


def _inner_ids(gateway: str, ids: Iterable[str]) -> list[str]:
    return [inner_id(gateway, each) for each in ids]
