"""What `fairgate top` asks a gateway for and holds of the answer: one view's worth at a time.

Sums are the gateway's: however many requests wait, an answer is as large as what is shown of it.
How it looks is not known here.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

View = Literal["tiers", "tenants", "users", "replicas", "requests", "batches"]
VIEWS: Final[tuple[View, ...]] = get_args(View)

Item = dict[str, Any]

GROUPS_MAX: Final = 100
"""Tenants, users and batches that a gateway tells at most."""
ITEMS_MAX: Final = 1_000
"""Replicas and requests that it tells at once at most."""


class Gateway(Protocol):
    """Whoever is asked."""

    def ask(self, method: str, *path: str, query: Any = None) -> Any:
        """What it answers. Raises RemoteError."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A gateway at one instant; None: not asked for."""

    overview: Item
    users: Item | None = None
    replicas: Item | None = None
    requests: Item | None = None
    batches: Item | None = None

    def told(self) -> Item:
        """As one document."""
        return {
            "object": "top",
            **{name: self.overview[name] for name in ("at", "version", "waiting", "held")},
            **{name: self.overview[name] for name in ("running", "waiting_most")},
            "tiers": self.overview["tiers"],
            "tenants": self.overview["tenants"],
            "tenants_more": self.overview["tenants_more"],
            "users": None if self.users is None else self.users["users"],
            "users_more": None if self.users is None else self.users["users_more"],
            "replicas": None if self.replicas is None else self.replicas["data"],
            "requests": None if self.requests is None else self.requests["data"],
            "batches": None if self.batches is None else self.batches["data"],
        }


def taken(gateway: Gateway, views: tuple[View, ...], rows: int) -> Picture:
    """A picture good for these views, of the first `rows` of each. Raises RemoteError."""
    groups, items = min(rows, GROUPS_MAX), min(rows, ITEMS_MAX)
    tenants = groups if "tenants" in views else 1
    waiting = {"state": "waiting", "limit": items}
    return Picture(
        overview=gateway.ask("GET", "overview", query={"limit": tenants}),
        users=gateway.ask("GET", "overview", "users", query={"limit": groups})
        if "users" in views
        else None,
        replicas=gateway.ask("GET", "replicas", query={"limit": items})
        if "replicas" in views
        else None,
        requests=gateway.ask("GET", "requests", query=waiting) if "requests" in views else None,
        batches=gateway.ask("GET", "batches", query={"limit": groups})
        if "batches" in views
        else None,
    )
