"""`fairgate keys|tenants|users|tiers|replicas|policy`: a running gateway from the command line.

Each command is one or two requests to the admin REST, shown as a table or, with `--json`, as they
came. It decides how they look, and nothing else.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gateway.remote import Remote

UrlOption = Annotated[
    str | None,
    typer.Option("--gateway", help="Of the gateway; default: $FAIRGATE_URL, then this machine."),
]
KeyOption = Annotated[str | None, typer.Option("--admin-key", help="Default: $FAIRGATE_ADMIN_KEY.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As it came, for programs.")]
KeyId = Annotated[str, typer.Argument(help="As `keys list` tells it.")]
TenantName = Annotated[str, typer.Argument(help="Of the tenant.")]
UserName = Annotated[str, typer.Argument(help="Of the user.")]
TierName = Annotated[str, typer.Argument(help="Of the tier.")]
ReplicaName = Annotated[str, typer.Argument(help="As `replicas list` tells it.")]
CascadeOption = Annotated[bool, typer.Option(help="Its users and keys as well.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would happen.")]

tenants = typer.Typer(help="Who shares the fleet.", no_args_is_help=True)
users = typer.Typer(help="Users of a tenant.", no_args_is_help=True)
tiers = typer.Typer(help="Service classes, the first served first.", no_args_is_help=True)
replicas = typer.Typer(help="The engines.", no_args_is_help=True)
policy = typer.Typer(help="Tiers, scheduling and bounds, as one document.", no_args_is_help=True)

KEY_COLUMNS = ("id", "label", "tenant", "user", "tier", "max_tier", "state", "source")
TENANT_COLUMNS = ("name", "weight", "users", "keys", "source")
USER_COLUMNS = ("tenant", "name", "weight", "source")
TIER_COLUMNS = ("rank", "name", "waiting", "running", "patience_s", "tpot_limit_ms", "min_share")
REPLICA_COLUMNS = ("name", "url", "engine", "models", "is_drained", "source")
CHANGE_COLUMNS = ("path", "before", "after")


@contextmanager
def gateway_at(
    url: str | None, key: str | None, *, timeout_s: float | None = None
) -> Iterator["Remote"]:
    """The gateway that is meant; what it refuses ends the command with status 1."""
    from gateway.remote import KEY_VARIABLE, TIMEOUT_S, Remote, RemoteError

    known = key or os.environ.get(KEY_VARIABLE)
    try:
        with Remote(url_of(url), known, timeout_s=timeout_s or TIMEOUT_S) as remote:
            yield remote
    except RemoteError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from None


def url_of(url: str | None) -> str:
    """Where the gateway is that is meant."""
    from gateway.remote import URL_DEFAULT, URL_VARIABLE

    return url or os.environ.get(URL_VARIABLE) or URL_DEFAULT


def show(items: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """A table, or one JSON document."""
    found = list(items)
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gateway.shown import shown

    table = Table(*columns, box=None, pad_edge=False)
    for each in found:
        # As text: in a name, brackets are no markup.
        table.add_row(*(Text(shown(_cell(each.get(column)))) for column in columns))
    Console().print(table)


def show_one(item: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing with all that is known of it."""
    if as_json:
        sys.stdout.write(json.dumps(item, indent=2) + "\n")
        return
    rows = [{"field": name, "value": value} for name, value in item.items() if name != "object"]
    show(rows, ("field", "value"), as_json=False)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _given(**fields: object) -> dict[str, object]:
    """The options that were given."""
    return {name: value for name, value in fields.items() if value not in (None, [], ())}


# --- keys ---------------------------------------------------------------------------------------


def add_keys(keys: typer.Typer) -> None:
    """The commands under `keys` that ask a running gateway."""
    for name, command in (
        ("list", keys_list),
        ("show", keys_show),
        ("block", keys_block),
        ("unblock", keys_unblock),
        ("rotate", keys_rotate),
        ("revoke", keys_revoke),
    ):
        keys.command(name)(command)


def make_key(url: str | None, admin_key: str | None, *, as_json: bool, **fields: object) -> None:
    """Have the gateway make a key; the key alone goes to standard output."""
    with gateway_at(url, admin_key) as remote:
        made = remote.ask("POST", "keys", body=_given(**fields))
    _show_made(made, as_json=as_json)


def _show_made(made: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_one(made, as_json=True)
        return
    sys.stderr.write(f"{made['notice']}\nid {made['id']}, tenant {made['tenant']}\n")
    sys.stdout.write(f"{made['key']}\n")


def keys_list(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    user: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """All keys, without what opens."""
    with gateway_at(gateway, admin_key) as remote:
        show(
            remote.all("keys", query=_given(tenant=tenant, user=user)), KEY_COLUMNS, as_json=as_json
        )


def keys_show(
    id: KeyId,
    *,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """One key."""
    with gateway_at(gateway, admin_key) as remote:
        show_one(remote.ask("GET", "keys", id), as_json=as_json)


def keys_block(
    id: KeyId,
    *,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a key open nothing for now."""
    with gateway_at(gateway, admin_key) as remote:
        show_one(remote.ask("PATCH", "keys", id, body={"blocked": True}), as_json=as_json)


def keys_unblock(
    id: KeyId,
    *,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let it open again."""
    with gateway_at(gateway, admin_key) as remote:
        show_one(remote.ask("PATCH", "keys", id, body={"blocked": False}), as_json=as_json)


def keys_rotate(
    id: KeyId,
    *,
    overlap_s: Annotated[float, typer.Option(help="The present form stays good so long.")] = 0.0,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hand a key out anew; it is shown once."""
    with gateway_at(gateway, admin_key) as remote:
        made = remote.ask("POST", "keys", id, "rotate", body={"overlap_s": overlap_s})
    _show_made(made, as_json=as_json)


def keys_revoke(id: KeyId, *, gateway: UrlOption = None, admin_key: KeyOption = None) -> None:
    """Remove a key: it opens nothing from now on."""
    with gateway_at(gateway, admin_key) as remote:
        remote.ask("DELETE", "keys", id)


# --- tenants and users --------------------------------------------------------------------------


@tenants.command("list")
def tenants_list(
    *, gateway: UrlOption = None, admin_key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """All tenants."""
    with gateway_at(gateway, admin_key) as remote:
        show(remote.all("tenants"), TENANT_COLUMNS, as_json=as_json)


@tenants.command("create")
def tenants_create(
    name: TenantName,
    *,
    weight: Annotated[float | None, typer.Option(help="Its share among the tenants.")] = None,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a tenant."""
    with gateway_at(gateway, admin_key) as remote:
        body = _given(name=name, weight=weight)
        show_one(remote.ask("POST", "tenants", body=body), as_json=as_json)


@tenants.command("set")
def tenants_set(
    name: TenantName,
    *,
    weight: Annotated[float | None, typer.Option(help="Its share among the tenants.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="At most.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="At most.")] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, help="Of its requests at once.")] = None,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a tenant; what is not given stays."""
    limits = _given(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrent=concurrent,
    )
    with gateway_at(gateway, admin_key) as remote:
        if limits:
            limits = {**remote.ask("GET", "tenants", name)["limits"], **limits}
        body = _given(weight=weight, limits=limits or None)
        show_one(remote.ask("PATCH", "tenants", name, body=body), as_json=as_json)


@tenants.command("remove")
def tenants_remove(
    name: TenantName,
    *,
    cascade: CascadeOption = False,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
) -> None:
    """Remove a tenant."""
    with gateway_at(gateway, admin_key) as remote:
        remote.ask("DELETE", "tenants", name, query={"cascade": cascade})


@users.command("list")
def users_list(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Users with a weight or limits of their own."""
    with gateway_at(gateway, admin_key) as remote:
        show(remote.all("users", query=_given(tenant=tenant)), USER_COLUMNS, as_json=as_json)


@users.command("create")
def users_create(
    tenant: TenantName,
    name: UserName,
    *,
    weight: Annotated[float | None, typer.Option(help="Its share in the tenant.")] = None,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a user a line of its own, with a weight or limits."""
    with gateway_at(gateway, admin_key) as remote:
        body = _given(tenant=tenant, name=name, weight=weight)
        show_one(remote.ask("POST", "users", body=body), as_json=as_json)


@users.command("remove")
def users_remove(
    tenant: TenantName, name: UserName, *, gateway: UrlOption = None, admin_key: KeyOption = None
) -> None:
    """Remove a user's line: weight and limits are the default ones again."""
    with gateway_at(gateway, admin_key) as remote:
        remote.ask("DELETE", "users", tenant, name)


# --- tiers and policy ---------------------------------------------------------------------------


@tiers.command("list")
def tiers_list(
    *, gateway: UrlOption = None, admin_key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """All tiers, the first one first."""
    with gateway_at(gateway, admin_key) as remote:
        show(remote.all("tiers"), TIER_COLUMNS, as_json=as_json)


@tiers.command("remove")
def tiers_remove(
    name: TierName,
    *,
    moved_to: Annotated[str, typer.Option(help="Where its requests and keys go.")],
    dry_run: DryRunOption = False,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a tier."""
    with gateway_at(gateway, admin_key) as remote:
        told = remote.ask("DELETE", "tiers", name, query={"moved_to": moved_to, "dry_run": dry_run})
    if dry_run:
        _show_rehearsal(told, as_json=as_json)
    else:
        show(told["data"], TIER_COLUMNS, as_json=as_json)


@policy.command("show")
def policy_show(*, gateway: UrlOption = None, admin_key: KeyOption = None) -> None:
    """The policy in force, as YAML that `policy set` takes."""
    import yaml

    with gateway_at(gateway, admin_key) as remote:
        found = remote.ask("GET", "policy")
    told = {name: value for name, value in found.items() if name not in POLICY_NOTES}
    sys.stdout.write(yaml.safe_dump(told, sort_keys=False))


POLICY_NOTES = frozenset({"object", "source", "version", "set_aside"})
"""What is told of a policy beside its document."""


@policy.command("set")
def policy_set(
    file: Annotated[Path, typer.Argument(help="YAML or JSON; - is standard input.")],
    *,
    dry_run: DryRunOption = False,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a policy in force, in place of the one there is now."""
    document = _document(file)
    with gateway_at(gateway, admin_key) as remote:
        _, version = remote.answer("GET", "policy")
        told = remote.ask(
            "PUT",
            "policy",
            body=document,
            headers={"if-match": version or "*"},
            query={"dry_run": dry_run},
        )
    if dry_run:
        _show_rehearsal(told, as_json=as_json)
    elif as_json:
        show_one(told, as_json=True)
    else:
        sys.stdout.write(f"in force: version {told['version']}\n")


def _document(file: Path) -> object:
    import yaml

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        return yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        sys.stderr.write(f"{file}: {error}\n")
        raise typer.Exit(2) from None


def _show_rehearsal(told: Mapping[str, Any], *, as_json: bool) -> None:
    """What a change would do."""
    if as_json:
        show_one(told, as_json=True)
        return
    show(told["changes"], CHANGE_COLUMNS, as_json=False)
    for name, value in told.items():
        if name not in ("object", "changes"):
            sys.stdout.write(f"{name}: {_cell(value)}\n")


# --- replicas -----------------------------------------------------------------------------------


@replicas.command("list")
def replicas_list(
    *, gateway: UrlOption = None, admin_key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """All replicas."""
    with gateway_at(gateway, admin_key) as remote:
        show(remote.all("replicas"), REPLICA_COLUMNS, as_json=as_json)


@replicas.command("add")
def replicas_add(
    url: Annotated[str, typer.Argument(help="Of the engine.")],
    *,
    model: Annotated[str | None, typer.Option(help="Default: those it lists itself.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Its slots; default: learnt.")] = None,
    gateway: UrlOption = None,
    admin_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an engine."""
    body = _given(url=url, model=model, max_num_seqs=max_num_seqs)
    with gateway_at(gateway, admin_key) as remote:
        show_one(remote.ask("POST", "replicas", body=body), as_json=as_json)


def _deed(verb: str, word: str) -> Callable[..., None]:
    def command(
        name: ReplicaName,
        *,
        gateway: UrlOption = None,
        admin_key: KeyOption = None,
        as_json: JsonOption = False,
    ) -> None:
        with gateway_at(gateway, admin_key) as remote:
            show_one(remote.ask("POST", "replicas", name, verb), as_json=as_json)

    command.__doc__ = word
    return command


replicas.command("drain")(_deed("drain", "Let a replica finish, and give it nothing new."))
replicas.command("undrain")(_deed("undrain", "Use a drained replica again."))


@replicas.command("remove")
def replicas_remove(
    name: ReplicaName, *, gateway: UrlOption = None, admin_key: KeyOption = None
) -> None:
    """Remove a replica that was added here; what runs there is finished."""
    with gateway_at(gateway, admin_key) as remote:
        remote.ask("DELETE", "replicas", name)
