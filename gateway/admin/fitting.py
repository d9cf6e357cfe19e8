"""Whether what the store holds fits what the configuration says, and what to do where it does not.

A change must fit as a whole. What is there already must never keep a gateway from starting: a
record that no longer fits is set aside, and the configuration is in force in its place.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from gateway.admin.overlay import POLICY, Name, Overlay, overlaid
from gateway.settings import Settings, SettingsError, settings_of
from gateway.settings_problems import dotted
from gateway.settings_sources import Place, Problem, Sources
from gateway.tenancy.store.port import Record

ROUNDS_MAX = 8
"""Times that the faulty records are set aside; beyond it all are."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Settings with what fits of the store, and what does not."""

    settings: Settings
    overlay: Overlay
    set_aside: Mapping[Name, tuple[str, ...]] = field(default_factory=dict)
    """What is wrong with each record that is not in force."""


class UnfitError(Exception):
    """A change does not fit; `problems` have places relative to the records that were written."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(map(told, problems)))


def told(problem: Problem) -> str:
    """`tiers[1].weight: must be ...`"""
    place = dotted(problem.place)
    return f"{place}: {problem.message}" if place else problem.message


def fitted(sources: Sources, records: Iterable[Record]) -> Fitted:
    """The settings with all of `records` that fits. O(settings), so off the loop.

    Raises SettingsError where the configuration by itself is faulty.
    """
    kept: dict[Name, Record] = {
        (each.kind, each.id): each for each in records if each.kind != "key"
    }
    set_aside: dict[Name, tuple[str, ...]] = {}
    for round_number in range(ROUNDS_MAX + 1):
        overlay = overlaid(sources.tree, kept.values())
        try:
            settings = settings_of(sources, overlay.tree)
        except SettingsError as error:
            if not kept:
                raise
            is_last = round_number + 1 >= ROUNDS_MAX
            faulty = set(kept) if is_last else _faulty(error.problems, overlay, set(kept))
            for name in faulty:
                del kept[name]
                own = [each for each in error.problems if overlay.owner(each.place) == name]
                set_aside[name] = tuple(map(told, own or error.problems))
        else:
            return Fitted(settings, overlay, set_aside)
    raise AssertionError("without records there is nothing to set aside")


def judged(
    sources: Sources,
    records: Iterable[Record],
    *,
    set_aside: Mapping[Name, tuple[str, ...]],
    written: Set[Name],
) -> Fitted:
    """The settings with all of `records`, less those `set_aside` before where they still must be.

    Raises UnfitError. O(settings), so off the loop.
    """
    kept = [each for each in records if each.kind != "key"]
    overlay = overlaid(sources.tree, kept)
    try:
        return Fitted(settings_of(sources, overlay.tree), overlay)
    except SettingsError as error:
        old = {name: why for name, why in set_aside.items() if name not in written}
        if not old:
            raise UnfitError(_relative(error, overlay)) from None
    kept = [each for each in kept if (each.kind, each.id) not in old]
    overlay = overlaid(sources.tree, kept)
    try:
        settings = settings_of(sources, overlay.tree)
    except SettingsError as error:
        raise UnfitError(_relative(error, overlay)) from None
    return Fitted(settings, overlay, old)


def _faulty(problems: tuple[Problem, ...], overlay: Overlay, kept: set[Name]) -> set[Name]:
    """Whom to blame: who wrote the faulty places, else the policy, else everything stored."""
    owners = {overlay.owner(problem.place) for problem in problems}
    named = {name for name in kept if name in owners}
    return named or {name for name in kept if name == POLICY} or kept


def _relative(error: SettingsError, overlay: Overlay) -> tuple[Problem, ...]:
    """The problems, each with its place inside the document that it is in."""
    return tuple(
        Problem(_inside(problem.place, overlay), problem.message) for problem in error.problems
    )


def _inside(place: Place, overlay: Overlay) -> Place:
    name = overlay.owner(place)
    if name is None or name == POLICY:
        return place
    length = max(n for n in range(1, len(place) + 1) if place[:n] in overlay.owners)
    return place[length:]
