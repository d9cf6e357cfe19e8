"""Several workloads at once: a power user beside light ones, a closed loop beside a trace.

Knows nothing of what they are; it orders their requests and gives them new numbers.
"""

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import count

from gateway.sim.workload.job import Job, Source
from gateway.sim.workload.synthetic import ClosedLoop


class Merged:
    """The requests of all parts in order of arrival; at one instant, the earlier part is first.

    Of closed loops those in flight are remembered, as many as they have users; all other sources
    are taken to be open.
    """

    def __init__(self, parts: Sequence[Source]) -> None:
        """Users of different parts need different names, or they are one."""
        if not parts:
            raise ValueError("nothing to merge")
        self.parts = tuple(parts)
        self._numbers = count()
        self._waiting: dict[int, tuple[Source, Job]] = {}

    def jobs(self) -> Iterator[Job]:
        """Lazily; all parts begin anew."""
        self._numbers = count()
        self._waiting = {}
        rows = [self._placed(place) for place in range(len(self.parts))]
        for _, place, job in merge(*rows, key=lambda row: row[:2]):
            yield self._numbered(self.parts[place], job)

    def ended(self, job: Job, at: float) -> Job | None:
        """What the client of that request sends next, if it is one of a closed loop."""
        found = self._waiting.pop(job.number, None)
        following = None if found is None else found[0].ended(found[1], at)
        return None if found is None or following is None else self._numbered(found[0], following)

    def _placed(self, place: int) -> Iterator[tuple[float, int, Job]]:
        for job in self.parts[place].jobs():
            yield job.arrived_at, place, job

    def _numbered(self, part: Source, job: Job) -> Job:
        number = next(self._numbers)
        if isinstance(part, ClosedLoop | Merged):
            self._waiting[number] = (part, job)
        # Written out: `dataclasses.replace` takes twice as long, for every request.
        return Job(
            number=number,
            arrived_at=job.arrived_at,
            prompt_tokens=job.prompt_tokens,
            output_tokens=job.output_tokens,
            tier=job.tier,
            tenant=job.tenant,
            user=job.user,
            output_tokens_max=job.output_tokens_max,
            prefix=job.prefix,
            session=job.session,
            leaves_at=job.leaves_at,
        )
