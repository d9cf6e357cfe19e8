"""Why a request waits, as JSON: every figure that the scheduler's explanation has, and a sentence.

What the figures mean is said here, field by field; how they come about is in `core/explain.py`.
"""

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.explain import Explanation, ReplicaVerdict
from gateway.core.gate import Closed

State = Literal["waiting", "held", "running", "ending"]
STATES: Mapping[str, State] = MappingProxyType(
    {"waiting": "waiting", "held": "held", "granted": "running"}
)
"""Ours for each of the scheduler's."""
STATE_TEXT = (
    "`held`: as many of its holder run as may; `ending`: between two attempts, or its client "
    "still reads."
)

WORDS: Mapping[str, str] = MappingProxyType(
    {
        Closed.UNUSABLE: "does not answer, is drained, or is no longer wanted",
        Closed.TRIPPED: "rests: its circuit breaker is open, or one request tries whether it works",
        Closed.BUSY: "said a moment ago that it is busy",
        Closed.QUEUE: "has no free slot, and as many as this tier allows wait inside it already",
        Closed.SPEED: "decodes slower than this tier allows",
        Closed.HEADROOM: "has its last free slots kept for the tiers above",
        Closed.LIMIT: "has as many sequences as it may have",
        Closed.SHARE: "has as many sequences of this gateway as its part of it allows",
        Closed.WARM_UP: "is new, and is filled step by step",
        Closed.RESERVED: "is kept free for a large request that was passed over",
        Closed.PREFILL: "has as many prompt tokens yet to compute as this tier allows",
        Closed.KV: "has too little free KV memory for it",
        Closed.ELSEWHERE: "does not serve its model, or has failed this very request",
    }
)
"""What each closed gate means, after the name of the replica."""


class FlowView(BaseModel):
    """One flow's claim: the smallest virtual start is served first."""

    tenant: str
    user: str
    tenant_start: float = Field(description="Virtual start among the tenants of the tier.")
    user_start: float = Field(description="Virtual start among the users of the tenant.")
    waiting: int = Field(description="Requests of this flow that wait in this tier.")


class VerdictView(BaseModel):
    """What keeps the request off one replica now."""

    replica: str
    closed_by: str | None = Field(
        description="The gate that is shut; null: it fits, and goes there when its turn comes."
    )
    reason: str | None = Field(description="The same in words.")
    tripped_by: str | None = Field(description="What opened its circuit breaker.")
    tripped_s: float = Field(description="How long that stays open at most.")
    occupied: int = Field(description="Sequences there, of this gateway and of others.")
    foreign: int = Field(description="Those of others.")
    slots: int | None = Field(description="Sequences it can run at once; null: not known.")
    waiting: int = Field(description="Sequences that wait inside the engine.")
    allowance: int = Field(description="Sequences that this tier may leave waiting there.")
    slots_away: int = Field(description="Slots kept from this tier for those above.")
    inflight_limit: float | None = Field(description="Sequences it gets at most; null: no limit.")
    tpot_ms: float | None = Field(description="Milliseconds an output token; null: not measured.")
    tpot_limit_ms: float = Field(description="What this tier allows.")
    unstarted_prompt_tokens: int = Field(description="Prompt tokens it has yet to compute.")
    prefill_limit_tokens: int = Field(description="What this tier allows.")
    kv_tokens: int = Field(description="KV tokens in use.")
    kv_capacity_tokens: int | None
    is_report_stale: bool = Field(description="Whether its metrics are too old to count.")


class ExplanationView(BaseModel):
    """Everything that decides when a request goes."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "object": "explanation", "request_id": "9f0c2d4e6a8b0c2d4e6a8b0c",
                "state": "waiting",
                "summary": "Position 3 in `standard`. gpu0-8000 has no free slot, and as many as "
                "this tier allows wait inside it already.",
                "model": "llama-3-8b", "tier": "standard", "tenant": "acme", "user": "alice",
                "waited_s": 1.7, "patience_left_s": 298.3, "position": 3, "expected_wait_s": 4.1,
                "cost": 640.0,
                "flow": {"tenant": "acme", "user": "alice", "tenant_start": 5120.0,
                         "user_start": 880.0, "waiting": 2},
                "flows_ahead": 1,
                "ahead": [{"tenant": "beta", "user": "bob", "tenant_start": 5004.0,
                           "user_start": 120.0, "waiting": 1}],
                "is_floor_owed": False, "is_aged": False, "tiers_ahead": 0, "granted_on": None,
                "held_by": None, "held_by_running": 0, "held_by_most": 0,
                "replicas": [{
                    "replica": "gpu0-8000", "closed_by": "queue",
                    "reason": "has no free slot, and as many as this tier allows wait inside it "
                    "already",
                    "tripped_by": None, "tripped_s": 0.0, "occupied": 256, "foreign": 0,
                    "slots": 256, "waiting": 2, "allowance": 2, "slots_away": 0,
                    "inflight_limit": None, "tpot_ms": 41.0, "tpot_limit_ms": 150.0,
                    "unstarted_prompt_tokens": 900, "prefill_limit_tokens": 8000,
                    "kv_tokens": 180000, "kv_capacity_tokens": 450000, "is_report_stale": False,
                }],
            }
        }
    )  # fmt: skip
    object: Literal["explanation"] = "explanation"
    request_id: str
    state: State = Field(description=STATE_TEXT)
    summary: str = Field(description="The same in a sentence or two.")
    model: str
    tier: str
    tenant: str
    user: str
    waited_s: float = Field(description="Seconds from its arrival to now, or to its grant.")
    patience_left_s: float | None = Field(description="Seconds until it is refused.")
    position: int | None = Field(description="Estimated place in the line, from 1.")
    expected_wait_s: float | None = Field(description="Seconds; null: nothing to tell it from.")
    cost: float | None = Field(description="Predicted, in the policy's cost unit.")
    flow: FlowView | None = Field(description="Its own claim.")
    flows_ahead: int = Field(description="Flows of its tier whose claim is older.")
    ahead: list[FlowView] = Field(description="The first of them.")
    is_floor_owed: bool = Field(description="Whether its tier is owed its minimum share.")
    is_aged: bool = Field(description="Whether it waited so long that it counts as the first tier.")
    tiers_ahead: int = Field(description="Requests that wait in the tiers above.")
    replicas: list[VerdictView] = Field(description="What keeps it off each replica of its pool.")
    granted_on: str | None = Field(description="The replica where it runs.")
    held_by: str | None = Field(description="Whose cap on concurrent requests keeps it back.")
    held_by_running: int = Field(description="Requests that run under that cap.")
    held_by_most: int = Field(description="As many may.")


def rendered(explanation: Explanation, request_id: str) -> ExplanationView:
    """An explanation of the scheduler, under the id that the client was told."""
    told = asdict(explanation)
    told["state"] = STATES[explanation.state]
    told["request_id"] = request_id
    told["summary"] = summary_of(explanation)
    for verdict, known in zip(told["replicas"], explanation.replicas, strict=True):
        verdict["reason"] = None if known.closed_by is None else _words(known.closed_by)
    return ExplanationView.model_validate(told)


def summary_of(explanation: Explanation) -> str:
    """What holds a request, in a sentence or two."""
    if explanation.granted_on is not None:
        return f"It runs on {explanation.granted_on}."
    if explanation.held_by is not None:
        running, most = explanation.held_by_running, explanation.held_by_most
        return f"Held back: {running} of at most {most} requests of `{explanation.held_by}` run."
    where = f"Position {explanation.position} in `{explanation.tier}`"
    ahead = []
    if explanation.tiers_ahead:
        ahead.append(f"{explanation.tiers_ahead} requests of higher tiers")
    if explanation.flows_ahead:
        ahead.append(f"{explanation.flows_ahead} flows with an older claim")
    line = f"{where}, behind {' and '.join(ahead)}." if ahead else f"{where}."
    if not explanation.replicas:
        return f"{line} No replica serves its model."
    return f"{line} {' '.join(_sentence(each) for each in explanation.replicas[:3])}"


def _sentence(verdict: ReplicaVerdict) -> str:
    if verdict.closed_by is None:
        return f"{verdict.replica} takes it when its turn comes."
    return f"{verdict.replica} {_words(verdict.closed_by)}."


def _words(closed_by: str) -> str:
    return WORDS.get(closed_by, closed_by)
