"""Which kinds of engine there are, and how to tell one from its metrics or its model cards."""

import re

from gateway.upstream.dialects import llamacpp, sglang, tgi, vllm
from gateway.upstream.dialects.dialect import Dialect

DIALECTS = (vllm.DIALECT, sglang.DIALECT, tgi.DIALECT, llamacpp.DIALECT)

_BY_NAME = {dialect.name: dialect for dialect in DIALECTS}

_MARKER = re.compile(
    b"\n(?:# (?:HELP|TYPE) )?("
    + b"|".join(re.escape(dialect.marker.encode()) for dialect in DIALECTS)
    + b")"
)


def by_name(name: str) -> Dialect:
    """The dialect called `name`; ValueError with the names there are."""
    dialect = _BY_NAME.get(name)
    if dialect is None:
        raise ValueError(f"unknown engine {name!r}: one of {', '.join(_BY_NAME)}")
    return dialect


def detect(text: bytes) -> Dialect | None:
    """The engine whose metric comes first in `text`; None for any other text."""
    match = _MARKER.search(b"\n" + text)
    if match is None:
        return None
    marker = match.group(1).decode()
    return next(dialect for dialect in DIALECTS if dialect.marker == marker)


def by_owner(owned_by: object) -> Dialect | None:
    """The engine that signs its model cards with `owned_by`; None where that tells nothing."""
    for dialect in DIALECTS:
        if dialect.owner is not None and dialect.owner == owned_by:
            return dialect
    return None
