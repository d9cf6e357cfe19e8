"""The fleet that a question is played on, and one play of it under the gateway's own scheduler.

Engines are equal here: one profile, so many replicas. What is asked of them it does not know.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.core.policy import Policy
from gateway.sim.engine_config import EngineConfig
from gateway.sim.measured import read_profile
from gateway.sim.profiles import A100_LLAMA2_7B, Profile, profile_named
from gateway.sim.workload.job import Job, Source
from gateway.sim.workload.traces import BLOCK_TOKENS
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.outcome import Outcome
from gateway.sim.world.plan import Engines, Plan, Reports
from gateway.sim.world.play import play

HOP_S = 0.002
"""One way between gateway and engine, where nobody measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """So many equal engines behind one gateway."""

    profile: Profile = A100_LLAMA2_7B
    replicas: int = 1
    max_num_seqs: int | None = None
    """None: as the profile says."""
    hop_s: float = HOP_S
    caches_prefixes: bool = True

    def sized(self, replicas: int) -> "Fleet":
        """The same with so many engines."""
        return replace(self, replicas=replicas)

    def plan(self, policy: Policy) -> Plan:
        """All of a run but its requests and its dispatcher."""
        profile = self.profile
        shares = self.caches_prefixes and BLOCK_TOKENS % profile.block_tokens == 0
        config = EngineConfig(
            max_num_seqs=self.max_num_seqs or profile.max_num_seqs,
            kv_blocks=profile.kv_blocks,
            block_tokens=profile.block_tokens,
            prefix_block_tokens=BLOCK_TOKENS if shares else 0,
        )
        return Plan(
            engines=(Engines(n=self.replicas, profile=profile, config=config),),
            hop_s=self.hop_s,
            reports=Reports(interval_s=policy.scrape_interval_s),
        )

    def play(self, source: Source, policy: Policy) -> Outcome:
        """What becomes of `source` under `policy`."""
        return play(self.plan(policy), source, Fairgate(policy))


class Ranked:
    """A workload whose tiers have other ranks. A job of a tier without one is a ValueError."""

    def __init__(self, source: Source, ranks: Sequence[int]) -> None:
        self._source = source
        self._ranks = ranks
        self._is_same = list(ranks) == list(range(len(ranks)))

    def jobs(self) -> Iterator[Job]:
        """See `Source.jobs`."""
        return map(self._ranked, self._source.jobs())

    def ended(self, job: Job, at: float) -> Job | None:
        """See `Source.ended`; only open workloads are ranked anew."""
        return self._source.ended(job, at) if self._is_same else None

    def _ranked(self, job: Job) -> Job:
        if job.tier >= len(self._ranks):
            raise ValueError(
                f"the workload has a tier {job.tier}, the policy ranks 0..{len(self._ranks) - 1}"
            )
        rank = self._ranks[job.tier]
        return job if rank == job.tier else replace(job, tier=rank)


def profile_of(told: str | None) -> Profile:
    """A profile by its name or its file; None: the first of the known ones that is a GPU.

    Raises:
        ValueError: neither a name nor a profile's file.
        OSError: the file cannot be read.
    """
    if told is None:
        return A100_LLAMA2_7B
    path = Path(told)
    return read_profile(path) if path.suffix or path.exists() else profile_named(told)
