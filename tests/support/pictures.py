"""A gateway as `fairgate top` hears it: its answers, as many of each as a test wants."""

from collections.abc import Mapping
from typing import Any

from gateway.remote import RemoteError

LINE: dict[str, Any] = {
    "waiting": 0, "held": 0, "running": 0, "oldest_wait_s": None, "position": None,
    "expected_wait_s": None,
}  # fmt: skip


def line(name: str, **fields: Any) -> dict[str, Any]:
    """One line of an overview."""
    return {**LINE, "name": name, "share": None, "fair_share": None, **fields}


def overview(**fields: Any) -> dict[str, Any]:
    """All tiers and tenants at a glance."""
    return {
        "object": "overview", "at": 1_800_000_000.0, "version": "1.0.0", "waiting": 0, "held": 0,
        "running": 0, "waiting_most": 10_000, "tiers": [], "tenants": [], "tenants_more": 0,
        **fields,
    }  # fmt: skip


def replica(name: str, **live: Any) -> dict[str, Any]:
    """One replica; `live` is what differs from one that idles."""
    idle = {
        "is_up": True, "is_usable": True, "is_draining": False,
        "circuit": {"state": "closed", "reason": None, "open_s": None},
        "health": {"error": None},
        "load": {"sequences": 0, "slots": 4, "waiting_estimate": 0, "foreign": 0},
        "limits": {"tpot_ms": None},
        "gates": [{"tier": "high", "closed_by": None, "reason": None, "slots_away": 0}],
    }  # fmt: skip
    return {"name": name, "members": None, "live": {**idle, **live}}


def shut(tier: str, reason: str | None) -> dict[str, Any]:
    """A gate that is shut for this reason; None: it is open."""
    return {"tier": tier, "closed_by": reason and "queue", "reason": reason, "slots_away": 0}


def request(number: int, **fields: Any) -> dict[str, Any]:
    """One that waits."""
    return {
        "id": f"id{number:06}", "tier": "high", "tenant": "acme", "user": "alice", "model": "m",
        "waited_s": 1.0, "position": number + 1, **fields,
    }  # fmt: skip


def batch(number: int, **fields: Any) -> dict[str, Any]:
    """One that runs."""
    return {
        "id": f"batch_{number:024}", "tenant": "acme", "user": "alice", "tier": "background",
        "status": "in_progress", "total": 50_000, "completed": 12_000, "failed": 3,
        "left_s": 5_400.0, "waits_for": None, **fields,
    }  # fmt: skip


class Answering:
    """Answers by route; while it is gone, nothing does. It remembers what it was asked."""

    def __init__(self, **parts: Any) -> None:
        self.is_gone = False
        self.asked: list[tuple[str, Mapping[str, object]]] = []
        self.parts = {
            "overview": overview(),
            "overview/users": {"users": [], "users_more": 0},
            "replicas": {"data": [], "has_more": False},
            "requests": {"data": [], "has_more": False},
            "batches": {"data": [], "has_more": False, "is_configured": True},
            **parts,
        }

    def ask(self, method: str, *path: str, query: Any = None) -> Any:
        """What the test says, at most as many as are asked for. Raises RemoteError."""
        assert method == "GET"
        route = "/".join(path)
        self.asked.append((route, query))
        if self.is_gone:
            raise RemoteError("it does not answer: connection refused")
        told = dict(self.parts[route])
        if "data" in told:
            told["has_more"] = len(told["data"]) > query["limit"]
            told["data"] = told["data"][: query["limit"]]
        return told
