"""Whatever comes, no more waits than is bounded, and who gives way is who takes most room."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.flows import Waiting
from gateway.core.messages import Reason, Refused, Request
from gateway.core.policy import Bounds, Policy, Room, Tenant, Tier
from tests.support.script import Script

WEIGHTS = {"a": 1.0, "b": 4.0}
TENANT_WEIGHTS = {"t": 1.0, "s": 0.5}
ROOM = Room(requests=6, body_bytes=90, tokens=2_000)

arrivals = st.lists(
    st.fixed_dictionaries(
        {
            "tier": st.integers(0, 1),
            "tenant": st.sampled_from(sorted(TENANT_WEIGHTS)),
            "user": st.sampled_from(sorted(WEIGHTS)),
            "prompt_tokens": st.sampled_from([5, 90, 400]),
            "body_bytes": st.sampled_from([0, 10, 40]),
            "output_tokens_max": st.just(10),
        }
    ),
    max_size=25,
)


def full(bounds: Bounds, **rooms: Room) -> Script:
    """One slot, taken, so that everything that comes waits."""
    tiers = (
        Tier(name="top", queue_limit=0, patience_s=1e6),
        Tier(name="low", queue_limit=0, patience_s=1e6, room=rooms.get("tier", Room())),
    )
    tenants = {
        name: Tenant(weight=weight, users=WEIGHTS, room=rooms.get("tenant", Room()))
        for name, weight in TENANT_WEIGHTS.items()
    }
    policy = Policy(tiers=tiers, tenants=tenants, bounds=bounds, recall=False)
    return Script(policy).replica("r", slots=1).arrive("held", user="z", tenant="z")


def refused_now(script: Script) -> list[Refused]:
    """What the last event had refused."""
    return [each for each in script.log[-1][2] if isinstance(each, Refused)]


Stay = tuple[Request, float, int]
"""A request, what it is estimated to cost, and when it came."""


def stays(script: Script) -> list[Stay]:
    """All that wait."""
    waiting = script.scheduler.waiting.values()
    return [(each.request, each.cost, each.sequence) for each in waiting]


def heaviest(waiting: list[Stay]) -> set[str]:
    """Ids of the newest of the flows with the most waiting cost over weight, in the lowest tier."""
    lowest = max(request.tier for request, _, _ in waiting)
    costs: dict[tuple[str, str], float] = {}
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for request, cost, sequence in waiting:
        if request.tier == lowest:
            flow = request.tenant, request.user
            weight = TENANT_WEIGHTS[request.tenant] * WEIGHTS[request.user]
            costs[flow] = costs.get(flow, 0.0) + cost / weight
            newest[flow] = max(newest.get(flow, (0, "")), (sequence, request.id))
    most = max(costs.values())
    return {newest[flow][1] for flow, cost in costs.items() if cost >= most - 1e-9}


@settings(max_examples=60, deadline=None)
@given(come=arrivals)
def test_the_heaviest_flow_of_the_lowest_tier_gives_way(come: list[dict[str, Any]]) -> None:
    """A full queue must not let the power user have the others refused."""
    script = full(Bounds(waiting=5))
    for number, fields in enumerate(come):
        id, before = f"q{number}", stays(script)
        script.arrive(id, **fields)
        assert len(script.waiting) <= 5
        gone = refused_now(script)
        assert len(gone) == (len(before) == 5)
        for refusal in gone:
            request = script.request(id)
            newcomer = request, fields["prompt_tokens"] + 2.0 * 10, 1 << 30
            assert refusal.request_id in heaviest([*before, newcomer])
            is_own = refusal.request_id == id
            assert refusal.reason is (Reason.QUEUE_FULL if is_own else Reason.SHED)


@settings(max_examples=60, deadline=None)
@given(
    come=arrivals,
    whose=st.sampled_from(["all", "tier", "tenant", "user"]),
    leave=st.lists(st.integers(0, 24), max_size=4),
)
def test_no_more_waits_of_anybody_than_there_is_room_for(
    come: list[dict[str, Any]], whose: str, leave: list[int]
) -> None:
    """Memory, and everybody else: by requests, by bytes and by tokens."""
    bounds = Bounds()
    if whose == "all":
        bounds = Bounds(waiting=6, waiting_bytes=90, waiting_tokens=2_000)
    if whose == "user":
        bounds = Bounds(
            waiting_per_user=6, waiting_bytes_per_user=90, waiting_tokens_per_user=2_000
        )
    script = full(bounds, **({whose: ROOM} if whose in ("tier", "tenant") else {}))
    for number, fields in enumerate(come):
        script.arrive(f"q{number}", **fields)
        if number in leave and f"q{number}" in script.waiting:
            script.cancel(f"q{number}")
        for waiting in grouped(script, whose):
            assert len(waiting) <= 6
            assert sum(each.request.body_bytes for each in waiting) <= 90
            assert sum(each.kv_tokens for each in waiting) <= 2_000
        for refusal in refused_now(script):
            assert refusal.retry_after_s is not None
            assert 1.0 <= refusal.retry_after_s <= bounds.retry_after_s_max


def grouped(script: Script, whose: str) -> list[list[Waiting]]:
    """What waits, as it is bounded."""
    groups: dict[object, list[Waiting]] = {}
    for each in script.scheduler.waiting.values():
        request = each.request
        key = {
            "all": None,
            "tier": "low",
            "tenant": request.tenant,
            "user": (request.tenant, request.user),
        }[whose]
        if whose != "tier" or request.tier == 1:
            groups.setdefault(key, []).append(each)
    return list(groups.values())
