"""How many connections may be open at once, and who may still come beyond that.

Beyond the bound a few more are accepted, for one answer each: operators must be able to ask how
the gateway is, and all others are told to come back. Beyond those nothing is accepted.
"""

from typing import Any

import uvicorn

SURPLUS = 32
SURPLUS_S = 5.0
"""A connection beyond the bound that has asked nothing by then is closed."""
UNBOUNDED = 1 << 30


class Crowd:
    """All connections of clients: how many may be, and whether they end."""

    __slots__ = ("is_leaving", "most", "turned_away")

    def __init__(self, most: int = UNBOUNDED) -> None:
        self.most = most
        self.is_leaving = False
        """Whether each connection ends with its next answer."""
        self.turned_away = 0
        """Connections that came beyond the bound."""

    def is_surplus(self, count: int) -> bool:
        """Whether the last of `count` connections gets one answer and no more."""
        return count > self.most

    def is_beyond(self, count: int) -> bool:
        """Whether the last of `count` connections gets nothing."""
        return count > self.most + SURPLUS


class ClientConfig(uvicorn.Config):
    """uvicorn's settings, with what our own connections need beside them."""

    crowd = Crowd()
    surplus: Any = None
    """The application for connections beyond the bound."""
