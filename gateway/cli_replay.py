"""`fairgate replay|tune|calibrate`: what another policy would do, and which, on what engine.

Arguments only: files are named here, and what was found is written to them and to the terminal.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gateway.lab.fleet import Fleet
    from gateway.settings import Settings

NO_ENGINE = "http://127.0.0.1:8000"

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="The YAML file; default: $FAIRGATE_CONFIG.")
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        help="Step times: a name, or a file of `fairgate calibrate`.", metavar="NAME|FILE"
    ),
]
ReplicasOption = Annotated[int | None, typer.Option(min=1, help="Engines; default: see above.")]
SlotsOption = Annotated[int | None, typer.Option(min=1, help="Slots of each engine.")]
HopOption = Annotated[float, typer.Option(min=0, help="One way from gateway to engine.")]
CacheOption = Annotated[bool, typer.Option(help="Whether engines cache prefixes of prompts.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write all figures there.")]
ModelOption = Annotated[str | None, typer.Option(help="Only requests of this model.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")]
SeedOption = Annotated[int, typer.Option(help="Of all that is drawn.")]


def add_to(app: typer.Typer) -> None:
    """Put these commands under `fairgate`."""
    app.command()(replay)
    app.command()(tune)
    app.command()(calibrate)


def replay(
    log: Annotated[Path, typer.Argument(help="The gateway's request log.", metavar="LOG.jsonl")],
    *,
    policy: Annotated[str, typer.Option(help="A policy document, or fifo.", metavar="FILE|fifo")],
    config: ConfigOption = None,
    profile: ProfileOption = None,
    replicas: ReplicasOption = None,
    max_num_seqs: SlotsOption = None,
    hop_ms: HopOption = 2.0,
    prefix_cache: CacheOption = True,
    model: ModelOption = None,
    limit: LimitOption = None,
    top: Annotated[int, typer.Option(min=1, help="Tenants and users that are named.")] = 10,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """What a log's requests would have got under another policy.

    The policy that wrote the log is taken from --config. Both are simulated on so many replicas as
    the log names, unless --replicas says otherwise.
    """
    from gateway.lab.policies import ranks_in, settings_of_policy
    from gateway.lab.replay import Question, answer

    with _faults_told():
        present = _settings(config)
        settings, new = settings_of_policy(present, policy)
        question = Question(
            log=log,
            tiers=present.tier_names,
            present=present.policy(),
            new=new,
            ranks=ranks_in(settings, present.tier_names),
            model=model,
            replicas=replicas,
            limit=limit,
            seed=seed,
            top=top,
        )
        fleet = _fleet(present, profile, max_num_seqs, hop_ms=hop_ms, prefix_cache=prefix_cache)
        found = answer(question, fleet)
        _write_json(json_file, found.values())
    _show(found.told())


def tune(
    *,
    slo: Annotated[Path, typer.Option(help="Targets by tier.", metavar="FILE.yaml")],
    log: Annotated[Path | None, typer.Option(help="A request log to tune on.")] = None,
    workload: Annotated[str | None, typer.Option(help="A workload to tune on.")] = None,
    knob: Annotated[
        list[str] | None, typer.Option("--set", help="Of the workload: NAME=VALUE; repeatable.")
    ] = None,
    config: ConfigOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the policy there.")] = None,
    profile: ProfileOption = None,
    replicas: ReplicasOption = None,
    max_num_seqs: SlotsOption = None,
    hop_ms: HopOption = 2.0,
    prefix_cache: CacheOption = True,
    model: ModelOption = None,
    limit: LimitOption = None,
    load: Annotated[float, typer.Option(help="The log comes so many times faster.")] = 1.0,
    budget: Annotated[int, typer.Option(min=1, help="Simulations.")] = 200,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: cores.")] = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """Look for a policy that keeps targets, with the least loss of throughput.

    The search begins at the policy of --config. The same seed finds the same policy, however many
    processes look for it.
    """
    from gateway.lab.goals import read_slo, targets_of
    from gateway.lab.policies import written
    from gateway.lab.trial import Bench, Recipe
    from gateway.lab.tune import tune as run

    with _faults_told():
        present = _settings(config)
        weights = present.policy().weights
        fleet = _fleet(present, profile, max_num_seqs, hop_ms=hop_ms, prefix_cache=prefix_cache)
        bench = Bench(
            recipe=Recipe(
                tiers=present.tier_names,
                log=log,
                model=model,
                limit=limit,
                load=load,
                workload=workload,
                knobs=_knobs(knob or [], limit),
                seed=seed,
            ),
            fleet=fleet.sized(replicas or len(present.addresses()) or 1),
            targets=tuple(targets_of(read_slo(slo), present.tier_names)),
            weights=(weights.prompt, weights.output),
        )
        processes = workers or os.cpu_count() or 1
        tuned = run(present, bench, budget=budget, seed=seed, workers=processes, say=_say)
        _write_json(json_file, tuned.values())
        if out is not None:
            out.write_text(written(tuned.document))
    _show(tuned.told())
    if out is None:
        _show(["", written(tuned.document).rstrip()])


def calibrate(
    *,
    url: Annotated[str, typer.Option(help="Of the engine, not of the gateway.")],
    out: Annotated[Path, typer.Option(help="Write the profile there.", metavar="FILE.yaml")],
    model: Annotated[str | None, typer.Option(help="Default: the first that it lists.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="At least three rounds are made.")] = 60.0,
    batch_max: Annotated[int, typer.Option(min=1, help="Most answers at once.")] = 64,
    max_num_seqs: SlotsOption = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="The variable that holds the engine's key.")
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Measure an idle engine, and write the profile of its step times."""
    import asyncio

    import yaml

    from gateway.lab.calibrate import Calibrated
    from gateway.lab.calibrate import calibrate as run
    from gateway.lab.loading import EngineFault, LiveEngine
    from gateway.sim.measured import profile_values

    api_key = os.environ.get(api_key_env) if api_key_env else None

    async def measured() -> Calibrated:
        engine = LiveEngine(url, model=model, api_key=api_key)
        try:
            return await run(
                engine,
                seconds=seconds,
                seed=seed,
                batch_max=batch_max,
                max_num_seqs=max_num_seqs,
                say=_say,
            )
        finally:
            await engine.aclose()

    with _faults_told():
        try:
            found = asyncio.run(measured())
        except EngineFault as error:
            sys.stderr.write(f"{url}: {error}\n")
            raise typer.Exit(1) from None
        out.write_text(yaml.safe_dump(profile_values(found.profile), sort_keys=False))
    _show(found.told())


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")


def _say(text: str) -> None:
    """How it goes; what was found goes to standard output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _knobs(told: list[str], limit: int | None) -> dict[str, object]:
    knobs: dict[str, object] = {} if limit is None else {"limit": limit}
    for each in told:
        name, is_set, value = each.partition("=")
        if not is_set:
            raise ValueError(f"--set {each}: expected NAME=VALUE")
        knobs[name] = value
    return knobs


def _settings(config: Path | None) -> "Settings":
    from gateway.settings import load_settings
    from gateway.settings_sources import CONFIG_VARIABLE

    # A question about policies needs no engine, which settings by themselves do.
    is_bare = config is None and CONFIG_VARIABLE not in os.environ
    overrides: dict[str, object] = {"replicas": (NO_ENGINE,)} if is_bare else {}
    return load_settings(config=config, environ=os.environ, overrides=overrides)


def _fleet(
    settings: "Settings",
    profile: str | None,
    max_num_seqs: int | None,
    *,
    hop_ms: float,
    prefix_cache: bool,
) -> "Fleet":
    """The engines that are meant; slots as configured, where all replicas have the same."""
    from gateway.lab.fleet import Fleet, profile_of

    configured = {address.max_num_seqs for address in settings.addresses()}
    slots = max_num_seqs or (configured.pop() if len(configured) == 1 else None)
    return Fleet(
        profile=profile_of(profile),
        max_num_seqs=slots,
        hop_s=hop_ms / 1000,
        caches_prefixes=prefix_cache,
    )


@contextmanager
def _faults_told() -> Iterator[None]:
    """What is wrong with what was given ends the command with status 2, and says so."""
    from gateway.settings import SettingsError

    try:
        yield
    except (OSError, ValueError, SettingsError) as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(2) from None


def _write_json(path: Path | None, values: object) -> None:
    if path is not None:
        path.write_text(json.dumps(values, indent=2) + "\n")
