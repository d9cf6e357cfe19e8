"""Small worlds for tests: a few jobs, a steady engine, a dispatcher that notes what it hears."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gateway.sim.engine_config import EngineConfig
from gateway.sim.profiles import Profile
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Deaf, Decisions, Machine, Report, Sent, Truth
from gateway.sim.world.plan import Engines, Plan, Reports

STEP_MS = 10.0
"""Of every step of the test engine, whatever is in it."""
HOP_S = 0.001

STEADY = Profile(
    name="steady", weights_ms=STEP_MS, token_ms=0.0, kv_blocks=1_000, kv_token_bytes=1_000
)
"""An engine whose steps all last `STEP_MS`."""


@dataclass
class Jobs:
    """An open workload of given jobs; `then` makes it a closed one."""

    list: Sequence[Job]
    then: Callable[[Job, float], Job | None] = lambda job, at: None
    ended_at: dict[int, float] = field(default_factory=dict)

    def jobs(self) -> Iterator[Job]:
        """See `Source.jobs`."""
        return iter(self.list)

    def ended(self, job: Job, at: float) -> Job | None:
        """See `Source.ended`."""
        assert job.number not in self.ended_at, "a request ends once"
        self.ended_at[job.number] = at
        return self.then(job, at)


def job(number: int, *, at: float = 0.0, prompt: int = 10, output: int = 5, **more: object) -> Job:
    """Short for a `Job`."""
    return Job(
        number=number,
        arrived_at=at,
        prompt_tokens=prompt,
        output_tokens=output,
        **more,  # type: ignore[arg-type]  # the caller knows
    )


def plan_of(
    replicas: int = 1,
    *,
    slots: int = 4,
    kv_blocks: int = 1_000,
    profile: Profile = STEADY,
    **more: object,
) -> Plan:
    """So many steady engines, one millisecond away, and no reports before a day has passed."""
    config = EngineConfig(max_num_seqs=slots, kv_blocks=kv_blocks)
    values: dict[str, object] = {
        "engines": (Engines(n=replicas, profile=profile, config=config),),
        "hop_s": HOP_S,
        "reports": Reports(interval_s=1e5),
        **more,
    }
    return Plan(**values)  # type: ignore[arg-type]  # the caller knows


class Scripted(Deaf):
    """Sends everything to replica 0 unless told otherwise, and writes down what it hears."""

    def __init__(self, answers: dict[tuple[str, int], Decisions] | None = None) -> None:
        """`answers`: what to decide at (what is heard, of which request or replica), once each."""
        self.answers = {} if answers is None else answers
        self.heard: list[tuple[float, str, int, object]] = []
        self.reports: list[tuple[float, int, Report]] = []
        self.truth: Truth | None = None

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """Remember the truth."""
        self.truth = truth
        return self._note(now, "begin", len(machines))

    def arrived(self, job: Job, now: float) -> Decisions:
        """Forward it, unless told otherwise."""
        return self._note(now, "arrived", job.number, otherwise=(Sent(job.number, 0),))

    def first_token(self, number: int, now: float) -> Decisions:
        """Write it down."""
        return self._note(now, "first", number)

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """Write it down."""
        return self._note(now, "ended", number, output_tokens)

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """Write it down."""
        return self._note(now, "left", number, output_tokens)

    def broke(
        self,
        number: int,
        now: float,
        *,
        replica: int,
        output_tokens: int,
        was_sent: bool,
        goes_on: bool,
    ) -> Decisions:
        """Go on with it on replica 1."""
        told = (output_tokens, was_sent, goes_on)
        return self._note(now, "broke", number, told, (Sent(number, 1),) if goes_on else ())

    def taken_back(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """Go on with it on replica 1."""
        return self._note(now, "taken_back", number, output_tokens, (Sent(number, 1),))

    def too_late(self, number: int, now: float) -> Decisions:
        """Write it down."""
        return self._note(now, "too_late", number)

    def moved(self, number: int, now: float, *, replica: int, is_done: bool) -> Decisions:
        """Write it down."""
        return self._note(now, "moved", number, (replica, is_done))

    def reported(self, replica: int, report: Report, now: float) -> Decisions:
        """Keep it."""
        self.reports.append((now, replica, report))
        return ()

    def lost(self, replica: int, now: float) -> Decisions:
        """Write it down."""
        return self._note(now, "lost", replica)

    def back(self, replica: int, now: float) -> Decisions:
        """Write it down."""
        return self._note(now, "back", replica)

    def drained(self, replica: int, now: float, *, is_draining: bool) -> Decisions:
        """Write it down."""
        return self._note(now, "drained", replica, is_draining)

    def tick(self, now: float) -> Decisions:
        """Write it down."""
        return self._note(now, "tick", 0)

    def what(self, *kinds: str) -> list[tuple[str, int]]:
        """What was heard of these kinds, in order, and of whom."""
        return [(kind, number) for _, kind, number, _ in self.heard if kind in kinds]

    def at(self, kind: str, number: int) -> float:
        """When that was first heard."""
        return next(at for at, what, who, _ in self.heard if (what, who) == (kind, number))

    def told(self, kind: str, number: int) -> object:
        """What else was told with it."""
        return next(more for _, what, who, more in self.heard if (what, who) == (kind, number))

    def _note(
        self, now: float, kind: str, number: int, more: object = None, otherwise: Decisions = ()
    ) -> Decisions:
        self.heard.append((round(now, 9), kind, number, more))
        return self.answers.pop((kind, number), otherwise)


def statuses(outcome_status: Iterable[int]) -> list[str]:
    """Names of how requests ended."""
    from gateway.sim.world.outcome import Status

    return [Status(value).name for value in outcome_status]
