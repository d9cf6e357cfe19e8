"""How the scheduler would react to another policy: asked of the scheduler itself, on a copy.

The copy is made from a snapshot, so what is told is what the same code would decide, if from then
on nothing came and each request that runs ended in the order in which it was released. How fast
engines really are is not known here: expected waits come from the rate measured so far.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.messages import Event, Finished, Granted, Outcome, PolicyChanged, Refused
from gateway.core.policy import Policy
from gateway.core.scheduler import Scheduler
from gateway.core.snapshot import restore, snapshot

REHEARSED_MAX = 1_000
"""Requests that wait and run; with more, nothing is rehearsed: the copy would take too long."""
SHOWN_MAX = 50
"""Requests of the queue that are told one by one, those that are served next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One waiting request before and after the change; None: it would never be released."""

    request_id: str
    tenant: str
    user: str
    tier_before: str
    tier_after: str
    turn_before: int | None
    """1: released next."""
    turn_after: int | None
    expected_wait_before_s: float | None
    expected_wait_after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What would become of what waits and runs."""

    waiting: int
    running: int
    granted_at_once: tuple[str, ...]
    """Released by the change itself."""
    refused_at_once: tuple[str, ...]
    moved_earlier: int
    moved_later: int
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """The queue under one policy."""

    turns: Mapping[str, int]
    waits_s: Mapping[str, float | None]
    granted: tuple[str, ...]
    refused: tuple[str, ...]


def picture_of(scheduler: Scheduler, now: float) -> dict[str, Any] | None:
    """All that a reaction is worked out from; None where it would be too much.

    Must be taken where the scheduler is; what follows may run anywhere. Up to 50 ms.
    """
    if len(scheduler.waiting) + len(scheduler.granted) > REHEARSED_MAX:
        return None
    return snapshot(scheduler, now)


def reaction(
    picture: Mapping[str, Any], old: Policy, changed: PolicyChanged, now: float
) -> Reaction:
    """What `changed` would do. Twice O(requests), outside the gateway's own scheduler."""
    before = _line(picture, old, now, None)
    after = _line(picture, old, now, changed)
    waiting = {each["request"]["id"]: each["request"] for each in picture["waiting"]}
    new_names = [tier.name for tier in changed.policy.tiers]
    turns = []
    for request_id, request in waiting.items():
        name = old.tiers[request["tier"]].name
        moved = name if name in new_names else changed.moved_to[name]
        turn = Turn(
            request_id=request_id,
            tenant=request["tenant"],
            user=request["user"],
            tier_before=name,
            tier_after=moved,
            turn_before=before.turns.get(request_id),
            turn_after=after.turns.get(request_id),
            expected_wait_before_s=before.waits_s.get(request_id),
            expected_wait_after_s=after.waits_s.get(request_id),
        )
        turns.append(turn)
    never = len(turns) + 1
    turns.sort(key=lambda each: (each.turn_after or never, each.turn_before or never))
    steps = [(each.turn_before or never, each.turn_after or never) for each in turns]
    return Reaction(
        waiting=len(turns),
        running=len(picture["granted"]),
        granted_at_once=after.granted,
        refused_at_once=after.refused,
        moved_earlier=sum(later < sooner for sooner, later in steps),
        moved_later=sum(later > sooner for sooner, later in steps),
        turns=tuple(turns[:SHOWN_MAX]),
    )


def _line(
    picture: Mapping[str, Any], policy: Policy, now: float, changed: PolicyChanged | None
) -> _Line:
    """The order in which a copy releases what waits."""
    copy = restore(policy, picture, now)
    granted: list[str] = []
    refused: list[str] = []
    if changed is not None:
        _tell(copy, changed, now, granted=granted, refused=refused)
    at_once, places = tuple(granted), {}
    for request_id in copy.waiting:
        place = copy.place_of(request_id, now)
        places[request_id] = None if place is None else place[1]
    running = list(copy.granted)
    # Each end releases what it makes room for; without an end nothing more would be.
    while copy.waiting and running:
        ended = running.pop(0)
        begun = len(granted)
        _tell(copy, Finished(ended, Outcome.DONE), now, granted=granted, refused=refused)
        running.extend(granted[begun:])
    turns = {request_id: turn for turn, request_id in enumerate(dict.fromkeys(granted), 1)}
    return _Line(turns, places, at_once, tuple(refused))


def _tell(
    copy: Scheduler, event: Event, now: float, *, granted: list[str], refused: list[str]
) -> None:
    for decision in copy.handle(event, now):
        if isinstance(decision, Granted):
            granted.append(decision.request_id)
        elif isinstance(decision, Refused):
            refused.append(decision.request_id)
