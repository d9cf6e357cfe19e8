"""The policy as one document: the sections of `fairgate.yaml` that decide how requests are served.

What a document means together with the rest of the settings is judged by whoever loads them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

import orjson
from pydantic import create_model

from gateway.admin.objections import InvalidDocumentError
from gateway.admin.overlay import POLICY_SECTIONS
from gateway.core.policy import DEFAULT_TIERS, Tier
from gateway.settings import Settings
from gateway.settings_document import Document, Section, TierSection
from gateway.settings_problems import dotted, parsed
from gateway.settings_sources import Problem

READ_ONLY = frozenset({"object", "source", "version", "set_aside"})
"""What is told beside the document, and passed over where it is sent back."""
CHANGES_TOLD = 500
"""Most differences between two documents that are listed."""
MARK_CHARS = 12

PolicyDocument: Any = create_model(
    "PolicyDocument",
    __base__=Section,
    __doc__="How requests are served; what is left out has its default.",
    **cast(
        "dict[str, Any]",
        {
            name: (Document.model_fields[name].annotation, Document.model_fields[name])
            for name in POLICY_SECTIONS
        },
    ),
)
"""All sections with their types, as in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that two documents do not share."""

    path: str
    before: Any
    after: Any


def document_of(settings: Settings) -> dict[str, Any]:
    """The policy in force, complete: also what nobody wrote."""
    found = settings.model_dump(mode="json", include=set(POLICY_SECTIONS))
    if not found["tiers"]:
        found["tiers"] = [_section_of(tier).model_dump(mode="json") for tier in DEFAULT_TIERS]
    return found


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The document that was sent, complete. Raises InvalidDocumentError with all its faults."""
    sent = {key: value for key, value in given.items() if key not in READ_ONLY}
    problems = [
        Problem((key,), "is no part of a policy") for key in sent if key not in POLICY_SECTIONS
    ]
    for key in sent.keys() & set(POLICY_SECTIONS):
        parsed(key, sent[key], problems)
    if problems:
        lines = [f"{dotted(each.place)}: {each.message}" for each in problems]
        raise InvalidDocumentError("\n".join(lines), param=dotted(problems[0].place))
    complete: dict[str, Any] = PolicyDocument.model_validate(sent).model_dump(mode="json")
    if not complete["tiers"]:
        raise InvalidDocumentError("tiers: must have at least one item", param="tiers")
    return complete


def mark_of(document: Mapping[str, Any]) -> str:
    """Differs where two documents do."""
    text = orjson.dumps(dict(document), option=orjson.OPT_SORT_KEYS)
    return sha256(text).hexdigest()[:MARK_CHARS]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What differs, by path; tiers are compared by their names, and so is their order."""
    return list(_differences("", _by_name(before), _by_name(after)))


def _by_name(document: Mapping[str, Any]) -> dict[str, Any]:
    tiers = document["tiers"]
    return {
        **document,
        "tiers": {tier["name"]: tier for tier in tiers},
        "order of tiers": [tier["name"] for tier in tiers],
    }


def _differences(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            here = f"{path}.{key}" if path else str(key)
            yield from _differences(here, before.get(key), after.get(key))
    elif before != after:
        yield Difference(path=path, before=before, after=after)


def _section_of(tier: Tier) -> TierSection:
    """A default tier as somebody would have written it."""
    return TierSection(
        name=tier.name,
        queue_limit=tier.queue_limit,
        tpot_limit_ms=tier.tpot_limit_ms,
        patience_s=tier.patience_s,
        min_share=tier.min_share,
        ttft_target_ms=tier.ttft_target_ms,
        tpot_target_ms=tier.tpot_target_ms,
    )
