"""All of the `fairgate` command: arguments only. Each command imports what it runs when it runs."""

import os
import sys
from hashlib import sha256
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gateway import cli_batch, cli_operate, cli_replay, cli_simulate, cli_store
from gateway.cli_serve import ConfigOption, PolicyOption, ReplicaOption, serve, settings_of

if TYPE_CHECKING:
    from gateway.settings import Settings

app = typer.Typer(
    name="fairgate",
    help="The fair, SLA-tiered front door of a self-hosted LLM fleet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(help="API keys.", no_args_is_help=True)
app.add_typer(keys, name="keys")
cli_operate.add_keys(keys)
cli_replay.add_to(app)
for name, commands in (
    ("tenants", cli_operate.tenants),
    ("users", cli_operate.users),
    ("tiers", cli_operate.tiers),
    ("replicas", cli_operate.replicas),
    ("policy", cli_operate.policy),
    ("store", cli_store.app),
    ("batch", cli_batch.app),
):
    app.add_typer(commands, name=name)
app.command("serve")(serve)
app.command("simulate")(cli_simulate.simulate)

TOP_TIMEOUT_S = 5.0
"""Who watches is told soon that a gateway does not answer."""


@app.command()
def check(
    *,
    config: ConfigOption = None,
    replica: ReplicaOption = None,
    live: Annotated[
        bool, typer.Option("--live", help="All that is wrong with what runs; status 0, 1 or 2.")
    ] = False,
    proxy_timeout_s: Annotated[
        float | None, typer.Option(min=0, help="--live: of a proxy in front, without a byte.")
    ] = None,
    gateway: cli_operate.UrlOption = None,
    admin_key: cli_operate.KeyOption = None,
    as_json: cli_operate.JsonOption = False,
) -> None:
    """Validate a configuration, ask every replica, and explain each failure."""
    if live:
        settings = settings_of(config, {"replicas": tuple(replica) if replica else None})
        _examine(settings, proxy_timeout_s, gateway, admin_key, as_json=as_json)
    if proxy_timeout_s is not None or as_json:
        raise typer.BadParameter("--proxy-timeout-s and --json go with --live")
    import asyncio

    from rich.console import Console

    from gateway.check import check as examine
    from gateway.check import has_errors, print_findings

    settings = settings_of(config, {"replicas": tuple(replica) if replica else None})
    findings = asyncio.run(examine(settings))
    print_findings(findings, Console())
    raise typer.Exit(1 if has_errors(findings) else 0)


def _examine(
    settings: "Settings",
    proxy_timeout_s: float | None,
    gateway: str | None,
    admin_key: str | None,
    *,
    as_json: bool,
) -> NoReturn:
    from gateway.doctor.run import report
    from gateway.remote import URL_VARIABLE

    is_wanted = bool(gateway or os.environ.get(URL_VARIABLE))
    with cli_operate.gateway_at(gateway, admin_key, timeout_s=TOP_TIMEOUT_S) as remote:
        status = report(
            settings,
            remote,
            cli_operate.url_of(gateway),
            proxy_timeout_s=proxy_timeout_s,
            is_wanted=is_wanted,
            as_json=as_json,
        )
    raise typer.Exit(status)


@app.command()
def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.5, help="Between two pictures.")] = 2.0,
    gateway: cli_operate.UrlOption = None,
    admin_key: cli_operate.KeyOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Pictures as lines of JSON; with --once, one.")
    ] = False,
) -> None:
    """Who waits and why, live in a terminal; where there is none, one picture is printed."""
    from contextlib import suppress
    from io import TextIOWrapper

    from rich.console import Console

    from gateway.top import run

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names may be in any script
    console, url = Console(), cli_operate.url_of(gateway)
    is_live = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()
    with (
        suppress(KeyboardInterrupt),
        cli_operate.gateway_at(gateway, admin_key, timeout_s=TOP_TIMEOUT_S) as remote,
    ):
        if as_json:
            run.in_json(remote, interval_s=None if once else interval_s)
        elif once or not is_live:
            run.once(remote, url, console)
        else:
            run.follow(remote, url, console, interval_s=interval_s)


@app.command()
def emulate(
    *,
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 9001,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[list[str] | None, typer.Option(help="Model name; further: LoRAs.")] = None,
    profile: Annotated[str, typer.Option(help="Step times: see docs/emulator.md.")] = "demo",
    speed: Annotated[float, typer.Option(help="Divides all engine times.")] = 1.0,
    max_num_seqs: Annotated[int | None, typer.Option(help="Slots.")] = None,
    kv_blocks: Annotated[int | None, typer.Option(help="Size of the KV cache in blocks.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Tokens of context.")] = None,
    scheduling_policy: Annotated[str, typer.Option(help="fcfs or priority.")] = "fcfs",
    max_num_queued_reqs: Annotated[int | None, typer.Option(help="503 beyond so many.")] = None,
    embeddings: Annotated[bool, typer.Option(help="Serve the pooling routes too.")] = False,
    enable_sleep_mode: Annotated[
        bool, typer.Option(help="/sleep, /wake_up, /is_sleeping.")
    ] = False,
    output_jitter: Annotated[float, typer.Option(help="Answers vary by this share.")] = 0.0,
    mean_tokens: Annotated[int | None, typer.Option(help="Of answers that just end.")] = None,
    sse_keep_alive_interval: Annotated[float, typer.Option(help="Seconds; 0: none.")] = 0.0,
    shutdown_timeout: Annotated[float, typer.Option(help="Seconds after SIGTERM.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling and jitter.")] = 0,
    fault: Annotated[list[str] | None, typer.Option(help="A fault; may be repeated.")] = None,
) -> None:
    """Run an emulated vLLM: its wire format and metrics over a model of its engine."""
    from gateway.emulator.options import EmulatorOptions
    from gateway.emulator.server import serve as run

    if scheduling_policy not in ("fcfs", "priority"):
        raise typer.BadParameter("--scheduling-policy is fcfs or priority")
    try:
        options = EmulatorOptions(
            host=host,
            port=port,
            models=tuple(model) if model else ("emulated",),
            profile=profile,
            speed=speed,
            max_num_seqs=max_num_seqs,
            kv_blocks=kv_blocks,
            max_model_len=max_model_len,
            scheduling_policy="priority" if scheduling_policy == "priority" else "fcfs",
            max_num_queued_reqs=max_num_queued_reqs,
            embeddings=embeddings,
            sleep_mode=enable_sleep_mode,
            output_jitter=output_jitter,
            mean_tokens=mean_tokens,
            sse_keep_alive_s=sse_keep_alive_interval,
            shutdown_timeout_s=shutdown_timeout,
            seed=seed,
            faults=tuple(fault or ()),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(run(options))


@app.command()
def demo(
    *,
    seconds: Annotated[
        float | None, typer.Option(help="Length of the whole demo; default: until Ctrl-C.")
    ] = None,
    policy: PolicyOption = None,
) -> None:
    """Two emulated replicas, one power user, several light ones; fair beside fifo."""
    from gateway.demo.run import demo as run

    raise typer.Exit(run(seconds=seconds, policy=policy))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    """Measure the gateway's own cost, beside peers on request; --help lists the options."""
    from gateway.bench.__main__ import main as run

    raise typer.Exit(run(context.args))


@keys.command("create")
def keys_create(
    *,
    tenant: Annotated[str, typer.Option(help="Tenant that pays.")],
    user: Annotated[str, typer.Option(help="User inside the tenant.")],
    tier: Annotated[str, typer.Option(help="The key's own tier.")] = "standard",
    gateway: cli_operate.UrlOption = None,
    admin_key: cli_operate.KeyOption = None,
    as_json: cli_operate.JsonOption = False,
) -> None:
    """Make an API key, printed once.

    A running gateway makes it where one is named, by --gateway or $FAIRGATE_URL. Else nobody is
    asked, and the lines for the configuration that hold its hash are printed below it.
    """
    import yaml

    from gateway.remote import URL_VARIABLE

    if gateway or os.environ.get(URL_VARIABLE):
        cli_operate.make_key(
            gateway, admin_key, as_json=as_json, tenant=tenant, user=user, tier=tier
        )
        return

    api_key = f"fg-{token_urlsafe(32)}"
    digest = sha256(api_key.encode("ascii")).hexdigest()
    entry = {"tenant": tenant, "user": user, "tier": tier, "key_sha256": digest}
    line = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1_000)
    sys.stderr.write("The key, shown this once; below, the entry for `keys:`.\n")
    sys.stdout.write(f"{api_key}\n  - {line}")
