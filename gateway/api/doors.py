"""Whether a new request may come in, decided before anything of it is read.

Who asks, and what for, is not known here; neither is why the doors were shut.
"""

from gateway.core.messages import Reason
from gateway.errors import GatewayError, OverloadedError, RefusedError

OVERLOADED_S = 5.0
"""When a client should come back that an overloaded gateway refused."""
ELSEWHERE_S = 1.0
"""When a client that finds a gateway leaving should ask again: another one has taken its place."""


class Doors:
    """The way into the gateway, and how many are inside."""

    __slots__ = ("floor", "inside", "is_leaving", "is_shut", "kept_out")

    def __init__(self) -> None:
        self.inside = 0
        """Requests that were let in and have not ended."""
        self.is_leaving = False
        """Whether traffic should go elsewhere; it is served all the same."""
        self.is_shut = False
        self.floor: int | None = None
        """Tiers from this rank on must stay out; None: none must."""
        self.kept_out = 0
        """Requests that were refused for that."""

    def announce(self) -> None:
        """Say that traffic should go elsewhere."""
        self.is_leaving = True

    def shut(self) -> None:
        """Let nobody in any more."""
        self.is_leaving = self.is_shut = True

    def objection(self) -> GatewayError | None:
        """Why nobody may come in now; None: somebody may."""
        return going() if self.is_shut else None

    def keep_out(self) -> GatewayError:
        """What a request of a tier that must stay out is told."""
        self.kept_out += 1
        text = "The gateway itself is overloaded; the lower tiers are refused first."
        return OverloadedError(text, retry_after_s=OVERLOADED_S)


def going() -> GatewayError:
    """What clients of a gateway that leaves are told, at its doors and at its end."""
    return RefusedError(Reason.SHUTTING_DOWN, ELSEWHERE_S)
