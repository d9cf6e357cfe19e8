"""An operator's own scenario: a workload, engines, a policy and dispatchers, from a YAML file.

Every fault of the file is listed at once. How a policy is read from its file is not known here: who
calls says it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml

from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.sim.engine_config import EngineConfig, SchedulingPolicy, Style
from gateway.sim.experiments.experiment import Experiment
from gateway.sim.experiments.measures import by_tier, distributions
from gateway.sim.experiments.report import Measured, Row
from gateway.sim.experiments.setting import DISPATCHERS, FAIRGATE, WATERMARK, dispatcher, served_by
from gateway.sim.profiles import profile_named
from gateway.sim.workload.catalogue import workload_named
from gateway.sim.workload.job import Job, Source
from gateway.sim.workload.mixes import tier_shares
from gateway.sim.world.plan import DAY_S, Drain, Engines, Failure, Misfortune, Plan, Reports
from gateway.sim.world.play import play

FILE_BYTES_MAX = 1 << 20
ENGINES_MAX = 1_000

Count = Annotated[int, msgspec.Meta(ge=1)]
Instant = Annotated[float, msgspec.Meta(ge=0)]


class EngineSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many engines of one kind; what is not said is the profile's own."""

    n: Annotated[int, msgspec.Meta(ge=1, le=ENGINES_MAX)] = 1
    profile: str = "a100-llama3-8b"
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count = 2048
    kv_blocks: Count | None = None
    scheduling_policy: SchedulingPolicy = "fcfs"
    style: Style = "vllm"


class ReportSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See `plan.Reports`."""

    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    delay_s: Instant = 0.01
    age_s: Instant = 0.0
    loss: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0


class EventSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replica dies, or is drained, for a while."""

    kind: Literal["failure", "drain"]
    replica: Annotated[int, msgspec.Meta(ge=0)]
    at: Instant
    until: Instant | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    workload: dict[str, str | int | float | bool | None]
    """Its `name`, and its knobs."""
    engines: Annotated[list[EngineSection], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [EngineSection()]
    )
    policy: str | None = None
    """A fairgate.yaml, from beside this file; None: the policy of an empty one."""
    dispatch: str | Annotated[list[str], msgspec.Meta(min_length=1)] = FAIRGATE
    reports: ReportSection = msgspec.field(default_factory=ReportSection)
    events: list[EventSection] = msgspec.field(default_factory=list)
    until_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    hop_s: Instant = 0.002

    @property
    def dispatchers(self) -> list[str]:
        """Names of those that are compared."""
        return [self.dispatch] if isinstance(self.dispatch, str) else self.dispatch


class ScenarioError(ValueError):
    """The file is no scenario; every fault is a line of the message."""


class ScenarioKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """What travels to the processes that play."""

    scenario: Scenario
    policy: Policy


ReadPolicy = Callable[[Path], Policy]


def scenario_from(path: Path, read_policy: ReadPolicy) -> Experiment[ScenarioKnobs]:
    """The scenario of a file, as an experiment with one point for each dispatcher.

    Args:
        path: the YAML file.
        read_policy: the policy of a configuration file; raises ValueError where there is none.

    Raises:
        OSError: the file, or one that it names, cannot be read.
        ScenarioError: it holds no scenario.
    """
    scenario = _read(path)
    errors: list[str] = []
    policy = Policy(tiers=DEFAULT_TIERS)
    if scenario.policy is not None:
        try:
            policy = read_policy(path.parent / scenario.policy)
        except ValueError as error:
            errors.append(f"policy: {error}")
    workload = dict(scenario.workload)
    if isinstance(workload.get("path"), str):
        workload["path"] = str(path.parent / str(workload["path"]))
    scenario = msgspec.structs.replace(scenario, workload=workload)
    errors += _faults(scenario, policy)
    if errors:
        raise ScenarioError("\n  ".join((f"{path}:", *errors)))
    return Experiment(
        name=path.name,
        about=f"{workload['name']} before {sum(each.n for each in scenario.engines)} engines",
        knobs=ScenarioKnobs(scenario=scenario, policy=policy),
        quick={},
        points=_points,
        measure=play_scenario,
        seeds=1,
    )


def play_scenario(knobs: ScenarioKnobs, point: Row, seed: int) -> Measured:
    """One run; the seed is the workload's, unless the file sets one."""
    name, tiers = str(point["dispatcher"]), len(knobs.policy.tiers)
    plan = served_by(name, plan_of(knobs.scenario))
    source = Ranked(source_of(knobs.scenario.workload, seed), tiers)
    outcome = play(plan, source, dispatcher(name, tiers, knobs.policy))
    counted = {what: count for what, count in outcome.counted().items() if count}
    figures: Row = {**by_tier(outcome, tiers), **counted}
    return Measured(figures=figures, distributions=distributions(outcome, name, tiers))


def plan_of(scenario: Scenario) -> Plan:
    """The world of a scenario."""
    return Plan(
        engines=tuple(_engines(section) for section in scenario.engines),
        hop_s=scenario.hop_s,
        reports=Reports(**msgspec.structs.asdict(scenario.reports)),
        events=tuple(_event(section) for section in scenario.events),
        until_s=DAY_S if scenario.until_s is None else scenario.until_s,
    )


def source_of(workload: Mapping[str, object], seed: int) -> Source:
    """The workload of that name with these knobs.

    Raises:
        ValueError: no such workload, knob or value.
        OSError: its file cannot be read.
    """
    entry = workload_named(str(workload.get("name")))
    knobs = {key: value for key, value in workload.items() if key != "name"}
    if "seed" in entry.knobs:
        knobs = {"seed": seed, **knobs}
    return entry.source(knobs)


class Ranked:
    """A source whose tiers are known to the policy."""

    def __init__(self, source: Source, tiers: int) -> None:
        self._source = source
        self._tiers = tiers

    def jobs(self) -> Iterator[Job]:
        """See `Source.jobs`; raises ValueError at one of a tier that there is not."""
        return map(self._checked, self._source.jobs())

    def ended(self, job: Job, at: float) -> Job | None:
        """See `Source.ended`."""
        following = self._source.ended(job, at)
        return None if following is None else self._checked(following)

    def _checked(self, job: Job) -> Job:
        if job.tier >= self._tiers:
            raise ValueError(
                f"request {job.number} is of tier {job.tier}; the policy has {self._tiers} tiers"
            )
        return job


def _read(path: Path) -> Scenario:
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise ScenarioError(f"{path}: a scenario has at most {FILE_BYTES_MAX} bytes")
    try:
        return msgspec.convert(yaml.safe_load(text), Scenario)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ScenarioError(f"{path}: {error}") from error


def _faults(scenario: Scenario, policy: Policy) -> list[str]:
    """What is wrong with values that have the right form."""
    faults = []
    for index, section in enumerate(scenario.engines):
        try:
            profile_named(section.profile)
        except ValueError as error:
            faults.append(f"engines[{index}].profile: {error}")
    faults += [
        f"dispatch: unknown dispatcher {name!r}; known: {', '.join(DISPATCHERS)}"
        for name in scenario.dispatchers
        if name not in DISPATCHERS
    ]
    replicas = sum(section.n for section in scenario.engines)
    for index, event in enumerate(scenario.events):
        if event.replica >= replicas:
            faults.append(f"events[{index}].replica: there are {replicas}, counted from 0")
        if event.until is not None and event.until <= event.at:
            faults.append(f"events[{index}].until: it must be after `at`")
    return faults + _workload_faults(scenario, policy)


def _workload_faults(scenario: Scenario, policy: Policy) -> list[str]:
    workload = scenario.workload
    if "name" not in workload:
        return ["workload: it needs a name; `fairgate simulate --list` shows those there are"]
    try:
        source_of(workload, 0)
        tiers = len(tier_shares(str(workload.get("tiers", "1"))))
    except ValueError as error:
        return [f"workload: {error}"]
    if tiers > len(policy.tiers):
        return [f"workload.tiers: {tiers} tiers, and the policy has {len(policy.tiers)}"]
    return []


def _points(knobs: ScenarioKnobs) -> list[Row]:
    return [{"dispatcher": name} for name in knobs.scenario.dispatchers]


def _engines(section: EngineSection) -> Engines:
    profile = profile_named(section.profile)
    blocks = section.kv_blocks or profile.kv_blocks
    config = EngineConfig(
        max_num_seqs=section.max_num_seqs or profile.max_num_seqs,
        max_num_batched_tokens=section.max_num_batched_tokens,
        kv_blocks=blocks,
        block_tokens=profile.block_tokens,
        watermark_blocks=int(WATERMARK * blocks),
        policy=section.scheduling_policy,
    ).styled(section.style, longest_tokens=profile.max_model_len)
    return Engines(n=section.n, profile=replace(profile, kv_blocks=blocks), config=config)


def _event(section: EventSection) -> Misfortune:
    kind = Failure if section.kind == "failure" else Drain
    until = inf if section.until is None else section.until
    return kind(replica=section.replica, at=section.at, until=until)
