"""How much waits of somebody, and whether that is more than a policy's `Room` holds."""

from gateway.core.policy import Room


class Tally:
    """What waits of one user, one tenant, one tier, or all together."""

    __slots__ = ("body_bytes", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.body_bytes = 0
        self.tokens = 0
        """Prompt tokens and predicted output tokens."""

    def exceeds(self, room: Room) -> bool:
        """Whether more waits than `room` holds."""
        return (
            (room.requests is not None and self.requests > room.requests)
            or (room.body_bytes is not None and self.body_bytes > room.body_bytes)
            or (room.tokens is not None and self.tokens > room.tokens)
        )

    def is_full_for(self, room: Room, *, body_bytes: int, tokens: int) -> bool:
        """Whether `room` would not hold one more request of this size."""
        return (
            (room.requests is not None and self.requests >= room.requests)
            or (room.body_bytes is not None and self.body_bytes + body_bytes > room.body_bytes)
            or (room.tokens is not None and self.tokens + tokens > room.tokens)
        )
