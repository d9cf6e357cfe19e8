"""A scheduler behind its gate, with nothing around it: what tests of admission need."""

import asyncio
from collections.abc import Callable

from gateway.core import invariants
from gateway.core.messages import Closed, ReplicaFound, Request
from gateway.core.policy import Bounds, Policy, Tier
from gateway.core.scheduler import Scheduler
from gateway.runtime.admission import Admission, LocalGate
from gateway.runtime.dispatcher import Dispatcher
from gateway.runtime.gate import Waits


class Gated:
    """A gate before `slots` slots of one replica, on the running loop's clock."""

    def __init__(self, slots: int = 1, *, patience_s: float = 1e6, waiting: int = 10_000) -> None:
        tier = Tier(name="only", queue_limit=0, patience_s=patience_s)
        # What the limiter makes of busy answers is not its affair: every slot counts.
        policy = Policy(
            tiers=(tier,), cost="requests", limiter="static", bounds=Bounds(waiting=waiting)
        )
        self.clock: Callable[[], float] = asyncio.get_running_loop().time
        self.scheduler = Scheduler(policy)
        self.dispatcher = Dispatcher(self.scheduler, self.clock)
        self.gate = LocalGate(self.dispatcher)
        self.slots = slots
        self._count = 0
        self.find("r", slots)

    def find(self, replica: str, slots: int) -> None:
        """Another replica."""
        models = frozenset({"m"})
        self.dispatcher.tell(ReplicaFound(replica=replica, models=models, slots=slots))

    def request(self, *, model: str = "m", user: str = "u", **fields: object) -> Request:
        """A new request with an id of its own."""
        self._count += 1
        return Request(
            id=f"q{self._count}", model=model, tier=0, tenant="t", user=user,
            arrived_at=self.clock(), **fields,  # type: ignore[arg-type]  # free keywords
        )  # fmt: skip

    def admitted(self, waits: Waits | None = None, /, **fields: object) -> Admission:
        """A stay with the scheduler, to be entered."""
        return self.gate.admitted(self.request(**fields), waits)  # type: ignore[arg-type]  # free keywords

    def close(self) -> None:
        """The gateway shuts down."""
        self.dispatcher.tell(Closed())

    @property
    def held(self) -> int:
        """Requests that the scheduler still knows."""
        return len(self.scheduler.waiting) + len(self.scheduler.granted)

    async def check_all_free(self) -> None:
        """Nothing is held, the books agree, and every slot can be had again, exactly once."""
        invariants.check(self.scheduler)
        assert self.held == 0, (self.scheduler.waiting, self.scheduler.granted)
        assert not self.dispatcher._waiters, "somebody is still called back"
        stays = [self.admitted() for _ in range(self.slots)]
        for stay in stays:
            await asyncio.wait_for(stay.__aenter__(), 1)
        extra = self.admitted()
        entering = asyncio.get_running_loop().create_task(extra.__aenter__())
        await asyncio.sleep(0)
        assert not entering.done(), "more slots came back than there are"
        for stay in stays:
            await stay.__aexit__(None, None, None)
        await entering
        await extra.__aexit__(None, None, None)
        assert self.held == 0
        invariants.check(self.scheduler)


async def steps(count: int) -> None:
    """Let everything else go `count` steps on."""
    for _ in range(count):
        await asyncio.sleep(0)
