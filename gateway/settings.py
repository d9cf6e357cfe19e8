"""Settings: file, environment and command line in, one frozen value out, or every fault at once.

The only place that reads files and environment for configuration. It decides what counts as a
fault of the world outside; what the settings are used for is not known here.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from gateway.settings_document import AutoscaleSection, LogSection, StoreSection
from gateway.settings_problems import Parts, dotted, parsed
from gateway.settings_rules import placed_replicas, violations
from gateway.settings_sources import (
    CONFIG_VARIABLE,
    Problem,
    Sources,
    Tree,
    from_environment,
    from_file,
    from_overrides,
)
from gateway.settings_values import DnsLookup, Settings

__all__ = [
    "DnsLookup", "Settings", "SettingsError", "load_settings", "load_store_url", "settings_of",
]  # fmt: skip


class SettingsError(Exception):
    """The settings cannot be used; `errors` lists every fault, one line each."""

    def __init__(self, errors: tuple[str, ...], problems: tuple[Problem, ...] = ()) -> None:
        """`problems` are the same faults with their places, where they are about places."""
        self.errors = errors
        self.problems = problems
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        super().__init__("\n  ".join((f"{count} in the settings:", *errors)))


def load_settings(
    *, config: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]
) -> Settings:
    """The settings of file, environment and command line; the later ones win.

    Args:
        config: the YAML file; None: the one that `FAIRGATE_CONFIG` names, or none.
        environ: the environment, `os.environ` outside tests.
        overrides: dotted keys with values, e.g. `{"listen.port": 9000}`; None is "not given".

    Raises:
        SettingsError: with every fault that could be found.
    """
    tree = _tree(config, environ).overlaid(from_overrides(overrides))
    return settings_of(Sources(tree, environ))


def settings_of(sources: Sources, tree: Tree | None = None) -> Settings:
    """The settings of sources that were read already.

    `tree` is theirs with what was decided at run time on top; None: nothing was. Raises
    SettingsError, whose problems have places in that tree.
    """
    tree = sources.tree if tree is None else tree
    unreadable = [problem for problem in tree.problems if not problem.place]
    if unreadable:
        raise SettingsError(_lines(tree, unreadable), tuple(unreadable))
    problems = list(tree.problems)
    values = tree.values
    parts: Parts = {}
    for key, value in values.items():
        parts |= parsed(key, value, problems)
    problems.extend(violations(values, parts))
    api_keys = _outside(parts, sources.environ, problems)
    if problems:
        raise SettingsError(_lines(tree, problems), tuple(problems))
    return Settings.of(values, api_keys=api_keys, sources=sources)


def load_store_url(*, config: Path | None, environ: Mapping[str, str]) -> str | None:
    """`store.url` alone: whoever rescues a store need not have the rest in order.

    Raises:
        SettingsError: with what is wrong with the section `store`, or with the file as a whole.
    """
    tree = _tree(config, environ)
    problems = [problem for problem in tree.problems if problem.place[:1] == ("store",)]
    parts = parsed("store", tree.values.get("store", {}), problems)
    if problems:
        raise SettingsError(_lines(tree, problems))
    section = parts["store",]
    assert isinstance(section, StoreSection)
    return section.url


def _tree(config: Path | None, environ: Mapping[str, str]) -> Tree:
    """File and environment. Raises SettingsError where nothing can be read of them."""
    path = config or environ.get(CONFIG_VARIABLE)
    tree = Tree() if not path else from_file(Path(path))
    tree = tree.overlaid(from_environment(environ))
    unreadable = [problem for problem in tree.problems if not problem.place]
    if unreadable:
        raise SettingsError(_lines(tree, unreadable))
    return tree


def _outside(
    parts: Parts, environ: Mapping[str, str], problems: list[Problem]
) -> Mapping[str, str]:
    """The engines' API keys by their variable's name; what the world lacks goes to `problems`."""
    api_keys: dict[str, str] = {}
    for place, replica in placed_replicas(parts):
        if replica.ca_file is not None and not replica.ca_file.is_file():
            problems.append(Problem((*place, "ca_file"), f"there is no file {replica.ca_file}"))
        if replica.api_key_env is None:
            continue
        if api_key := environ.get(replica.api_key_env):
            api_keys[replica.api_key_env] = api_key
        else:
            # The name is not repeated: it may be the key itself, pasted into the wrong place.
            message = "the environment variable of this name is not set"
            problems.append(Problem((*place, "api_key_env"), message))
    log = parts.get(("log",))
    if isinstance(log, LogSection) and log.traces is not None and not _has_opentelemetry():
        problems.append(Problem(("log", "traces"), "needs the extra: pip install 'fairgate[otel]'"))
    autoscale = parts.get(("autoscale",))
    if isinstance(autoscale, AutoscaleSection) and (name := autoscale.webhook.secret_env):
        if secret := environ.get(name):
            api_keys[name] = secret
        else:
            place = ("autoscale", "webhook", "secret_env")
            problems.append(Problem(place, "the environment variable of this name is not set"))
    return api_keys


def _has_opentelemetry() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter") is not None
    except ModuleNotFoundError:
        return False


def _lines(tree: Tree, problems: list[Problem]) -> tuple[str, ...]:
    """`origin: key: what is wrong`, each once, in the order found."""
    lines = (
        ": ".join(filter(None, (tree.origin(p.place), dotted(p.place), p.message)))
        for p in problems
    )
    return tuple(dict.fromkeys(lines))
