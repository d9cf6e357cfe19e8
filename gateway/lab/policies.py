"""Policy documents on disk: read, judged together with a configuration, and written.

A document means here what it means to `PUT /admin/v1/policy`: it replaces the policy's sections of
the configuration as a whole, and what it leaves out has its default.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from gateway.admin.objections import InvalidDocumentError
from gateway.admin.overlay import POLICY, overlaid
from gateway.admin.policy_document import checked
from gateway.core.policy import Policy
from gateway.settings import Settings, SettingsError, settings_of
from gateway.settings_sources import from_file
from gateway.tenancy.store.port import Record

FIFO = "fifo"
"""Names the policy that forwards everything at once, where no file has this name."""


def read_document(path: Path) -> dict[str, Any]:
    """The document of a YAML or JSON file, complete.

    Raises:
        ValueError: it cannot be read, or is no policy; the message has every fault.
    """
    tree = from_file(path)
    if tree.problems:
        raise ValueError("\n".join(problem.message for problem in tree.problems))
    try:
        return checked(tree.values)
    except InvalidDocumentError as error:
        raise ValueError(f"{path}: {error}") from error


def settings_with(present: Settings, document: Mapping[str, Any]) -> Settings:
    """The present settings with the policy of a complete document.

    Raises:
        ValueError: they do not fit together; the message has every fault.
    """
    record = Record(kind=POLICY[0], id=POLICY[1], version=1, body=dict(document))
    sources = present.sources
    try:
        return settings_of(sources, overlaid(sources.tree, [record]).tree)
    except SettingsError as error:
        raise ValueError(str(error)) from error


def settings_of_policy(present: Settings, policy: str) -> tuple[Settings, Policy]:
    """The settings and the scheduler's policy for what `--policy` says: a file, or `fifo`.

    Raises:
        ValueError: see `read_document` and `settings_with`.
    """
    path = Path(policy)
    if policy == FIFO and not path.exists():
        return present, replace(present.policy(), release_at_once=True)
    settings = settings_with(present, read_document(path))
    return settings, settings.policy()


def ranks_in(settings: Settings, tiers: tuple[str, ...]) -> list[int]:
    """The rank under `settings` of each of `tiers`; those that are gone go where `moved_to` says.

    Raises:
        ValueError: a tier is gone and nobody says where to.
    """
    names = settings.tier_names
    ranks: list[int] = []
    for tier in tiers:
        name = tier if tier in names else settings.moved_to.get(tier)
        if name is None:
            raise ValueError(f"moved_to: the tier {tier!r} is gone; where do its requests go?")
        ranks.append(names.index(name))
    return ranks


def written(document: Mapping[str, Any]) -> str:
    """A complete document as YAML, for `--policy` and `PUT /admin/v1/policy`."""
    return yaml.safe_dump(dict(document), sort_keys=False, default_flow_style=False, width=100)
