"""Any order of events, with caps on users and tenants: none is exceeded, and nobody stands still.

That no holder with room keeps back what nothing of its group precedes is one of the invariants
that are checked after every event.
"""

import random
from typing import Any

import pytest

from tests.support import world as w

USER_MOST, TENANT_MOST = 2, 3


class CappedWorld(w.World):
    """A world in which each user may have two running, and each tenant three."""

    def _new(
        self, shape: dict[str, Any], *, tier: int, who: str, age_s: float
    ) -> tuple[str, dict[str, Any]]:
        id, fields = super()._new(shape, tier=tier, who=who, age_s=age_s)
        caps = ((f"user {who}", USER_MOST), (f"tenant {fields['tenant']}", TENANT_MOST))
        return id, {**fields, "caps": caps}

    def check(self) -> None:
        """As before, and no cap is exceeded by what was let go under it."""
        super().check()
        script = self.script
        if self.policy.release_at_once or script.log[-1][1].__class__.__name__ == "Adopted":
            return
        for holder in script.scheduler.caps.holders.values():
            let_go = [id for id in holder.running if id in script.order]
            free = [id for id in let_go if script.request(id).is_continuation]
            assert len(let_go) - len(free) <= holder.most or self.was_open, holder.name

    was_open = False
    """Whether a policy without any order let everything go at some time."""

    def change(self, knobs: Any) -> None:
        super().change(knobs)
        self.was_open = self.was_open or self.policy.release_at_once


@pytest.mark.parametrize("seed", range(12))
def test_no_cap_is_exceeded_on_a_busy_day(seed: int) -> None:
    """Two requests too many of one user are two too few of another."""
    dice = random.Random(f"caps {seed}")
    world = CappedWorld(w.mixed(dice))
    world.was_open = world.policy.release_at_once
    try:
        for _ in range(250):
            w._happen(world, dice)
        world.end()
    finally:
        world.close()
