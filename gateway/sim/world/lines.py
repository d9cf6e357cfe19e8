"""A batch in a world: its lines come as the window of the gateway's own batches lets them through.

The window is looked at where the gateway looks: at once when a line has ended, and every so often
for what the scheduler let through meanwhile. Whom else the world serves is not known here.
"""

from collections.abc import Iterator
from random import Random

from gateway.core.window import Window
from gateway.sim.workload.job import Job, Source
from gateway.sim.workload.lengths import Lengths
from gateway.sim.world.play import World

LOOK_S = 0.05
"""`TICK_S` of a batch in the gateway."""
FIRST_NUMBER = 1 << 32
"""Of lines: those of the people beside them are smaller."""


class Batch:
    """Up to `lines` requests of one user, beside those of a source. It is the world's source."""

    def __init__(
        self,
        people: Source,
        *,
        lines: int,
        lengths: Lengths,
        tier: int,
        in_flight: int,
        seed: int,
    ) -> None:
        """`in_flight`: most lines that are under way at once, as `batches.in_flight`."""
        self.asked = 0
        """Lines that were handed over so far."""
        self._people = people
        self._lines = lines
        self._lengths = lengths
        self._tier = tier
        self._dice = Random(f"{seed} lines")
        self._window = Window(lines_max=in_flight, bytes_max=1)
        self._under_way: set[int] = set()
        self._world: World | None = None

    def join(self, world: World) -> None:
        """Begin there, at the instant at which it begins."""
        self._world = world
        world.clock.at(world.clock.now, self._tick)

    def jobs(self) -> Iterator[Job]:
        """Those of the people."""
        return self._people.jobs()

    def ended(self, job: Job, at: float) -> Job | None:
        """See `Source.ended`; where it was a line, there may be room for another one."""
        if job.number < FIRST_NUMBER:
            return self._people.ended(job, at)
        self._under_way.discard(job.number)
        if self._world is not None:
            self._world.clock.after(0.0, self._look)
        return None

    def _tick(self) -> None:
        self._look()
        if self._world is not None and self.asked < self._lines:
            self._world.clock.after(LOOK_S, self._tick)

    def _look(self) -> None:
        world = self._world
        assert world is not None
        waiting = sum(world.open[number].stay is None for number in self._under_way)
        room = self._window.room(running=len(self._under_way) - waiting, waiting=waiting, size=0)
        for _ in range(min(room, self._lines - self.asked)):
            world.ask(self._next(world.clock.now))

    def _next(self, now: float) -> Job:
        number = FIRST_NUMBER + self.asked
        self.asked += 1
        self._under_way.add(number)
        prompt_tokens, output_tokens = self._lengths.draw(self._dice)
        return Job(
            number=number,
            arrived_at=now,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            tier=self._tier,
            tenant="batch",
            user="batch",
            streams=False,
        )
