"""Whatever callers do in whatever order, no slot is lost, given twice, or given to nobody."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import invariants
from gateway.core.messages import Outcome
from gateway.errors import RefusedError
from gateway.runtime.gate import Waits
from tests.support.admitting import Gated, steps
from tests.support.jumping import run_jumping

WHICH = st.integers(0, 5)
ARRIVALS = st.tuples(st.just("arrive"), st.sampled_from(["a", "b", "c"]), st.booleans())
ACTIONS = st.one_of(
    ARRIVALS,
    ARRIVALS,
    st.tuples(st.sampled_from(["cancel", "finish", "bounce", "leave", "fail"]), WHICH),
    st.tuples(st.sampled_from(["cancel", "finish", "bounce", "leave", "fail"]), WHICH),
    st.tuples(st.just("steps"), st.integers(1, 4)),
    st.tuples(st.just("seconds"), st.sampled_from([0.01, 0.3, 2.0, 40.0])),
)


@dataclass
class Caller:
    """One request and what it is told to do next."""

    gated: Gated
    orders: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    granted: int = 0

    async def run(self, user: str, waits: Waits | None) -> None:
        """Stay until told to leave; refusals are an end like any other."""
        is_over = False
        try:
            async with self.gated.admitted(waits, user=user, patience_s=30.0) as grant:
                while True:
                    self.granted += 1
                    match await self.orders.get():
                        case "finish":
                            grant.first_token()
                            grant.finish(Outcome.DONE)
                            is_over = True
                        case "bounce":
                            if not is_over:
                                await grant.bounce()
                        case "fail":
                            raise ConnectionError
                        case _:
                            return
        except (RefusedError, ConnectionError):
            return


async def play(slots: int, actions: list[tuple[object, ...]]) -> None:
    """Carry out `actions`, checking the books after each, then let everybody leave."""
    gated = Gated(slots)
    tasks: list[tuple[Caller, asyncio.Task[None]]] = []
    loop = asyncio.get_running_loop()

    async def on_wait(position: int, eta_s: float | None) -> None:
        assert position >= 1
        await steps(2)

    for kind, *rest in actions:
        if kind == "arrive":
            caller = Caller(gated)
            waits = Waits(on_wait, 0.7) if rest[1] else None
            tasks.append((caller, loop.create_task(caller.run(str(rest[0]), waits))))
        elif kind == "steps":
            await steps(int(str(rest[0])))
        elif kind == "seconds":
            await asyncio.sleep(float(str(rest[0])))
            is_settled = rest[0] in (2.0, 40.0)
            is_full = len(gated.scheduler.granted) == slots
            assert not is_settled or is_full or not gated.scheduler.waiting, "a slot lies idle"
        elif tasks:
            caller, task = tasks[int(str(rest[0])) % len(tasks)]
            if kind == "cancel":
                task.cancel()
            else:
                caller.orders.put_nowait(str(kind))
        invariants.check(gated.scheduler)
        assert len(gated.scheduler.granted) <= slots
    for caller, task in tasks:
        caller.orders.put_nowait("leave")
        if caller.granted % 2:
            task.cancel()
    await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
    await asyncio.sleep(1.0)
    await gated.check_all_free()


@settings(max_examples=120)
@given(st.integers(1, 3), st.lists(ACTIONS, min_size=8, max_size=40))
def test_no_order_of_events_loses_or_doubles_a_slot(
    slots: int, actions: list[tuple[object, ...]]
) -> None:
    """Every lost slot makes the fleet smaller until somebody restarts the gateway."""
    run_jumping(play(slots, actions))
