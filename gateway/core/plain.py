"""Instants, requests and reports as plain values that survive JSON, and back.

An instant of one process means nothing to another, so it travels as its age: seconds before now,
negative where it is still to come. What JSON has no word for, infinity and NaN, is None.
"""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any

from gateway.core.messages import Request
from gateway.core.report import Rank, ReplicaReport


def finite(value: float | None) -> float | None:
    """`value`; None where it is no number that JSON knows."""
    return value if value is not None and isfinite(value) else None


def age_s(instant: float | None, now: float) -> float | None:
    """Seconds since `instant`; None for never, be it None or infinite."""
    return None if instant is None or not isfinite(instant) else now - instant


def instant_of(age: float | None, now: float, *, never: float = -inf) -> float:
    """The instant that is `age` seconds before `now`; `never` for None."""
    return never if age is None else now - age


def known_instant(age: float | None, now: float) -> float | None:
    """As `instant_of`, where None is a value of its own."""
    return None if age is None else now - age


def plain_request(request: Request, now: float) -> dict[str, Any]:
    """All of a request; its tier by rank."""
    return {
        "id": request.id,
        "model": request.model,
        "tier": request.tier,
        "tenant": request.tenant,
        "user": request.user,
        "arrived_age_s": now - request.arrived_at,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens_max": request.output_tokens_max,
        "sequences": request.sequences,
        "streams": request.streams,
        "body_bytes": request.body_bytes,
        "patience_s": finite(request.patience_s),
        "route": request.route,
        "excluded": sorted(request.excluded),
        "only": request.only,
        "prefix": list(request.prefix),
        "session": request.session,
        "read_timeout_s": finite(request.read_timeout_s),
        "ttft_target_s": finite(request.ttft_target_s),
        "is_continuation": request.is_continuation,
        "is_continuable": request.is_continuable,
        "caps": [list(cap) for cap in request.caps],
    }


def request_of(data: Mapping[str, Any], now: float, *, tier: int) -> Request:
    """The request that `plain_request` was given, in the clock of `now` and ranked `tier`."""
    return Request(
        id=data["id"],
        model=data["model"],
        tier=tier,
        tenant=data["tenant"],
        user=data["user"],
        arrived_at=now - data["arrived_age_s"],
        prompt_tokens=data["prompt_tokens"],
        output_tokens_max=data["output_tokens_max"],
        sequences=data["sequences"],
        streams=data["streams"],
        body_bytes=data["body_bytes"],
        patience_s=data["patience_s"],
        route=data["route"],
        excluded=frozenset(data["excluded"]),
        only=data["only"],
        prefix=tuple(data["prefix"]),
        session=data["session"],
        read_timeout_s=data["read_timeout_s"],
        ttft_target_s=data["ttft_target_s"],
        is_continuation=data["is_continuation"],
        is_continuable=data["is_continuable"],
        caps=tuple((name, most) for name, most in data["caps"]),
    )


def plain_report(report: ReplicaReport | None) -> dict[str, Any] | None:
    """All of a report; it holds no instant."""
    if report is None:
        return None
    return {
        "running": report.running,
        "waiting": report.waiting,
        "kv_use": finite(report.kv_use),
        "kv_capacity_tokens": report.kv_capacity_tokens,
        "engines": report.engines,
        "slots": report.slots,
        "itl_sum_s": finite(report.itl_sum_s),
        "itl_count": finite(report.itl_count),
        "ttft_sum_s": finite(report.ttft_sum_s),
        "ttft_count": finite(report.ttft_count),
        "prefill_sum_s": finite(report.prefill_sum_s),
        "prefill_count": finite(report.prefill_count),
        "prompt_tokens": finite(report.prompt_tokens),
        "generation_tokens": finite(report.generation_tokens),
        "iterations": finite(report.iterations),
        "preemptions": finite(report.preemptions),
        "ranks": [[rank.sequences, finite(rank.steps)] for rank in report.ranks],
        "missing": list(report.missing),
    }


def report_of(data: Mapping[str, Any] | None) -> ReplicaReport | None:
    """The report that `plain_report` was given."""
    if data is None:
        return None
    return ReplicaReport(
        running=data["running"],
        waiting=data["waiting"],
        kv_use=data["kv_use"],
        kv_capacity_tokens=data["kv_capacity_tokens"],
        engines=data["engines"],
        slots=data["slots"],
        itl_sum_s=data["itl_sum_s"],
        itl_count=data["itl_count"],
        ttft_sum_s=data["ttft_sum_s"],
        ttft_count=data["ttft_count"],
        prefill_sum_s=data["prefill_sum_s"],
        prefill_count=data["prefill_count"],
        prompt_tokens=data["prompt_tokens"],
        generation_tokens=data["generation_tokens"],
        iterations=data["iterations"],
        preemptions=data["preemptions"],
        ranks=tuple(Rank(sequences, steps or 0.0) for sequences, steps in data["ranks"]),
        missing=tuple(data["missing"]),
    )
