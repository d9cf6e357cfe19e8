"""What the demo shows and for how long: its users, and phases that share the time there is.

Pure. How requests are sent and what comes of them is not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

PolicyName = Literal["fair", "fifo"]

DEFAULT_S = 45.0
"""Length of the phases where none was asked for."""
PHASES_S_MIN = 6.0
"""Below this the figures would be accidents, so that a demo asked to be shorter takes longer."""
WEIGHTS: Mapping[PolicyName, float] = MappingProxyType({"fair": 2.5, "fifo": 1.5})
"""A phase under flood is so many times as long as the one without: its waits scatter more, and
most so in the fair one, where the claim about them is a tight one."""
PAUSE_S_MAX = 2.0
PAUSE_S_MIN = 0.4
"""With shorter pauses the light users alone would begin to queue behind each other."""
REQUESTS_ALONE = 4.0
"""A short demo shortens the pauses until each light user sends so many requests alone."""
LEAD_S_MAX = 1.0
"""About one answer: after so long the slots of a flooded engine no longer end all at once."""
LEAD_SHARE = 0.4
LEAD_FIFO_S = 0.3
QUIET_S_MAX = 1.0
QUIET_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoUser:
    """Somebody who sends requests."""

    name: str
    output_tokens_max: int
    """The emulated engines answer with two thirds of it on average: see `emulate_arguments`."""
    outstanding: int
    """Light users: at most so many at once; the power user: always so many."""


LIGHT_USERS = tuple(
    DemoUser(name=name, output_tokens_max=24, outstanding=32) for name in ("alice", "bob", "carol")
)
POWER_USER = DemoUser(name="batch-bot", output_tokens_max=75, outstanding=80)
"""Fifty tokens on average: one second at the 20 ms a token of the demo profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of the demo with one load through one gateway."""

    name: str
    policy: PolicyName
    """Which gateway the requests go through."""
    is_flooded: bool
    pause_s: float
    """Mean time between two requests of a light user."""
    length_s: float | None
    """None: until somebody ends it."""

    @property
    def users(self) -> tuple[DemoUser, ...]:
        """Who sends in this phase."""
        return (*LIGHT_USERS, POWER_USER) if self.is_flooded else LIGHT_USERS

    @property
    def steady_after_s(self) -> float:
        """From here on the ends of answers say something about the pace of the engines."""
        return LEAD_S_MAX if self.length_s is None else min(LEAD_S_MAX, LEAD_SHARE * self.length_s)

    @property
    def lead_s(self) -> float:
        """Light users send nothing before this: the flood is there first."""
        if not self.is_flooded:
            return 0.0
        # Through fifo it is in the engines at once, and every wait is a long one from then on.
        return self.steady_after_s if self.policy == "fair" else LEAD_FIFO_S

    @property
    def sending_until_s(self) -> float | None:
        """Light users send nothing new after this, so that few are cut off while they wait."""
        if self.length_s is None:
            return None
        return self.length_s - min(QUIET_S_MAX, QUIET_SHARE * self.length_s)

    @property
    def first_within_s(self) -> float:
        """Each light user sends its first request within so long after the lead."""
        if self.sending_until_s is None:
            return self.pause_s
        # Half of the time for sending, so that nobody is left without a request.
        return min(self.pause_s, (self.sending_until_s - self.lead_s) / 2)


def policies_shown(policy: PolicyName | None) -> tuple[PolicyName, ...]:
    """The gateways to start, the one whose address is printed first."""
    return ("fair", "fifo") if policy is None else (policy,)


def planned(shown: Sequence[PolicyName], length_s: float) -> tuple[Phase, ...]:
    """The light users alone, then the flood through each gateway; together `length_s` long."""
    length_s = max(PHASES_S_MIN, length_s)
    alone_s = length_s / (1 + sum(WEIGHTS[policy] for policy in shown))
    pause_s = min(PAUSE_S_MAX, max(PAUSE_S_MIN, alone_s / REQUESTS_ALONE))
    alone = Phase(
        name="alone", policy=shown[0], is_flooded=False, pause_s=pause_s, length_s=alone_s
    )
    floods = (
        Phase(
            name=policy,
            policy=policy,
            is_flooded=True,
            pause_s=pause_s,
            length_s=WEIGHTS[policy] * alone_s,
        )
        for policy in shown
    )
    return (alone, *floods)


def endless(shown: Sequence[PolicyName]) -> Phase:
    """The flood through the first gateway, until somebody ends it."""
    return Phase(
        name=shown[0], policy=shown[0], is_flooded=True, pause_s=PAUSE_S_MAX, length_s=None
    )
