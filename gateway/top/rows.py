"""The rows of each view as text: which figures, in which order, and what is said in their place.

Pure; how wide a terminal is, and what colours it has, is not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.shown import shown
from gateway.top.picture import Item, Picture, View

NOTHING = "-"
LINE = ("waiting", "held", "running", "oldest", "place", "expected")
COLUMNS: Mapping[View, tuple[str, ...]] = {
    "tiers": ("tier", *LINE, "share", "fair"),
    "tenants": ("tenant", *LINE, "share", "fair"),
    "users": ("tenant", "user", *LINE),
    "replicas": ("replica", "state", "slots", "queue", "others", "tpot", "open to", "why closed"),
    "requests": ("request", "tier", "tenant", "user", "model", "waited", "place"),
    "batches": (
        *("batch", "state", "tier", "tenant", "user", "done", "failed", "of", "left"),
        "waits for",
    ),
}
TEXTS = frozenset(
    {
        *("tier", "tenant", "user", "replica", "state", "open to", "why closed", "request"),
        *("model", "batch", "waits for"),
    }
)
"""Columns that are words; all others are figures, and stand to the right."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a view. `mood` says how it is doing."""

    cells: tuple[str, ...]
    mood: str = "well"


@dataclass(frozen=True, slots=True)
class Rows:
    """A view: its lines, and how many more there are that were not told."""

    lines: Sequence[Row]
    more: int = 0


def rows_of(picture: Picture, view: View) -> Rows | None:
    """What there is to show; None: it was not asked for yet."""
    match view:
        case "tiers":
            return Rows([_shared(each) for each in picture.overview["tiers"]])
        case "tenants":
            tenants = [_shared(each) for each in picture.overview["tenants"]]
            return Rows(tenants, picture.overview["tenants_more"])
        case "users":
            return None if picture.users is None else _users(picture.users)
        case "replicas":
            return None if picture.replicas is None else _replicas(picture.replicas)
        case "requests":
            return None if picture.requests is None else _requests(picture)
        case "batches":
            return None if picture.batches is None else _batches(picture.batches)


def seconds(value: float | None) -> str:
    """A duration, as short as it is telling."""
    if value is None:
        return NOTHING
    if value < 10:
        return f"{value:.1f}s"
    if value < 600:
        return f"{value:.0f}s"
    return f"{value / 60:.0f}m" if value < 36_000 else f"{value / 3_600:.0f}h"


def _shared(each: Item) -> Row:
    name = shown(each["name"])
    return Row((name, *_line(each), _share(each["share"]), _share(each["fair_share"])), _mood(each))


def _users(told: Item) -> Rows:
    lines = [
        Row((shown(each["tenant"]), shown(each["name"]), *_line(each)), _mood(each))
        for each in told["users"]
    ]
    return Rows(lines, told["users_more"])


def _line(each: Item) -> tuple[str, ...]:
    """The figures of a line, in the order of `LINE`."""
    return (
        *(str(each[name]) for name in ("waiting", "held", "running")),
        seconds(each["oldest_wait_s"]),
        NOTHING if each["position"] is None else str(each["position"]),
        seconds(each["expected_wait_s"]),
    )


def _mood(each: Item) -> str:
    if each["waiting"]:
        return "waits"
    return "well" if each["running"] else "idle"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


def _replicas(told: Item) -> Rows:
    lines = []
    for each in told["data"]:
        live = each["live"]
        name = shown(each["name"])
        if live is None:
            members = len(each["members"] or ())
            lines.append(Row((name, f"name of {members}", *[NOTHING] * 5, ""), "idle"))
            continue
        state = _state(live)
        lines.append(Row((name, state, *_load(live), _open_to(live), _why(live)), _well(state)))
    return Rows(lines, 1 if told["has_more"] else 0)


def _state(live: Mapping[str, Any]) -> str:
    if not live["is_up"]:
        return "down"
    if live["is_draining"]:
        return "draining"
    if live["circuit"]["state"] != "closed":
        return "tripped" if live["circuit"]["state"] == "open" else "trying"
    return "up" if live["is_usable"] else "unusable"


def _well(state: str) -> str:
    return {"up": "well", "down": "bad", "tripped": "bad"}.get(state, "waits")


def _load(live: Mapping[str, Any]) -> tuple[str, ...]:
    load, limits = live["load"], live["limits"]
    if load is None:
        return (NOTHING,) * 4
    slots = "?" if load["slots"] is None else load["slots"]
    tpot_ms = None if limits is None else limits["tpot_ms"]
    return (
        f"{load['sequences']}/{slots}",
        str(load["waiting_estimate"]),
        str(load["foreign"]),
        NOTHING if tpot_ms is None else f"{tpot_ms:.0f}ms",
    )


def _open_to(live: Mapping[str, Any]) -> str:
    """The tiers that it takes now; by rank, gates open from the top down."""
    gates = live["gates"]
    names = [shown(each["tier"]) for each in gates if each["closed_by"] is None]
    if gates and len(names) == len(gates):
        return "all"
    return ", ".join(names) or "none"


def _why(live: Mapping[str, Any]) -> str:
    """What keeps it from those that it does not take, the most telling first."""
    health, circuit = live["health"], live["circuit"]
    if not live["is_up"]:
        return shown(health["error"] or "does not answer")
    if circuit["state"] != "closed":
        left = "" if circuit["open_s"] is None else f", for {seconds(circuit['open_s'])}"
        return shown(f"{circuit['reason'] or 'its circuit breaker is open'}{left}")
    shut = [each for each in live["gates"] if each["closed_by"] is not None]
    said: dict[str, list[str]] = {}
    for each in shut:
        said.setdefault(each["reason"], []).append(each["tier"])
    if len(said) == 1 and len(shut) == len(live["gates"]):
        return shown(next(iter(said)))
    return shown("; ".join(f"{', '.join(tiers)}: {reason}" for reason, tiers in said.items()))


def _requests(picture: Picture) -> Rows:
    assert picture.requests is not None
    lines = []
    for each in picture.requests["data"]:
        names = (each["id"], each["tier"], each["tenant"], each["user"], each["model"])
        place = NOTHING if each["position"] is None else str(each["position"])
        lines.append(Row((*map(shown, names), seconds(each["waited_s"]), place)))
    waiting = max(int(picture.overview["waiting"]), len(lines))
    return Rows(lines, waiting - len(lines) if picture.requests["has_more"] else 0)


def _batches(told: Item) -> Rows:
    lines = []
    for each in told["data"]:
        names = (each["id"], each["status"], each["tier"], each["tenant"], each["user"])
        counts = (str(each[name]) for name in ("completed", "failed", "total"))
        why = shown(each["waits_for"] or "")
        left = seconds(each["left_s"])
        lines.append(Row((*map(shown, names), *counts, left, why), _going(each)))
    return Rows(lines, 1 if told["has_more"] else 0)


def _going(each: Item) -> str:
    if each["waits_for"] is not None or each["status"] in ("failed", "expired"):
        return "bad"
    return "idle" if each["status"] in ("completed", "cancelled") else "well"
