"""`python -m gateway.bench.simulation`: how long a simulation takes, and how its memory grows.

One seeded load, four tiers of 5,000 users, before so many replicas: by default a million requests
before 64. What grows with the requests is the outcome, 64 bytes of figures for each.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.sim.profiles import A100_LLAMA3_8B
from gateway.sim.workload.arrivals import Poisson
from gateway.sim.workload.job import Job, Source
from gateway.sim.workload.lengths import Zipf
from gateway.sim.workload.mixes import Tiers, crowd, enterprise
from gateway.sim.workload.synthetic import Open
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.plan import Engines, Plan
from gateway.sim.world.play import play

REQUESTS, REPLICAS = 1_000_000, 64
RATE_PER_REPLICA = 78.0
"""Requests a second; about half of what a replica can do."""
USERS, TENANTS = 5_000, 50
SHARES = (0.1, 0.5)
"""Of the requests, after whose arrival a line is printed; the last comes at the end."""
TIERS = len(DEFAULT_TIERS)

Say = Callable[[str], object]


class Watched:
    """A workload that tells how far it is."""

    def __init__(self, source: Source, marks: dict[int, str], say: Say) -> None:
        """`marks`: what to say, by how many requests have come."""
        self._source = source
        self._marks = marks
        self._say = say

    def jobs(self) -> Iterator[Job]:
        """See `Source.jobs`."""
        for count, job in enumerate(self._source.jobs(), 1):
            yield job
            if count in self._marks:
                self._say(self._marks[count])

    def ended(self, job: Job, at: float) -> Job | None:
        """See `Source.ended`."""
        return self._source.ended(job, at)


def measure(requests: int, replicas: int, say: Say) -> int:
    """Play, and say at each mark how long it took so far and what memory; requests not done."""
    began_at = time.perf_counter()

    def tell(what: str) -> None:
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        say(f"{what}: {time.perf_counter() - began_at:.1f} s, peak memory {peak_mib:.0f} MiB")

    load = Open(
        arrivals=Poisson(rate_per_s=RATE_PER_REPLICA * replicas),
        lengths=Zipf(),
        tiers=Tiers(enterprise(TIERS)),
        crowd=crowd(users=USERS, tenants=TENANTS, skew=0.0),
        limit=requests,
    )
    marks = {max(1, int(share * requests)): f"{share:.0%}" for share in SHARES}
    plan = Plan(engines=(Engines(n=replicas, profile=A100_LLAMA3_8B),))
    outcome = play(plan, Watched(load, marks, tell), Fairgate(Policy(tiers=DEFAULT_TIERS)))
    tell("100%")
    done = outcome.counted()["done"]
    say(f"{outcome.n:,} requests before {replicas} replicas, {outcome.lasted_s:.0f} s of virtual "
        f"time, {done:,} done; digest {outcome.digest()[:16]}")  # fmt: skip
    return outcome.n - done


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where all requests were done, else 1."""
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.simulation", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--replicas", type=int, default=REPLICAS)
    options = parser.parse_args(arguments)
    if options.requests < 1 or options.replicas < 1:
        parser.error("at least one of each")

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    return 1 if measure(options.requests, options.replicas, say) else 0


if __name__ == "__main__":
    sys.exit(main())
