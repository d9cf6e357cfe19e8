"""What the gateway has to know of an engine's kind, as one frozen value per kind.

The facts live in the dialect modules; this file knows no engine by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.core.report import ReplicaReport


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says of itself on its own information route. None means it does not say."""

    slots: int | None = None
    """Sequences the whole replica runs at a time, summed over data-parallel engines."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together that one request may have."""
    model: str | None = None
    """The model's name, where the engine may have no `/v1/models`."""


def says_nothing(_: Mapping[str, object]) -> EngineFacts:
    """The reader of an engine that has no information route."""
    return EngineFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of engine: how it reports and how it takes a priority."""

    name: str
    marker: str
    """What the names of its metrics begin with, and no other engine's."""
    owner: str | None
    """`owned_by` on its model cards, where that tells the kind."""
    parse: Callable[[bytes], ReplicaReport]
    """Metrics text to report; never raises, whatever the text."""
    accepts_priority: bool
    """False: it has no such parameter, and none should be sent."""
    lower_priority_first: bool
    tells_token_ids: bool = False
    """Whether it tells the ids of what it generates, and goes on from ids."""
    takes_cache_salt: bool = False
    """Whether it keeps the cached prompts of different salts apart."""
    metrics_path: str = "/metrics"
    metrics_flag: str | None = None
    """The start option without which it has no metrics; None where they are always there."""
    info_paths: tuple[str, ...] = ()
    """Routes that may answer with `EngineFacts`, the newest first."""
    read_info: Callable[[Mapping[str, object]], EngineFacts] = says_nothing

    def priority_value(self, tier: int, tiers_total: int) -> int:
        """The `priority` that makes this engine serve `tier` (0 first) in its place.

        Values are 0..tiers_total - 1. Without meaning where `accepts_priority` is False.
        """
        assert 0 <= tier < tiers_total, (tier, tiers_total)
        return tier if self.lower_priority_first else tiers_total - 1 - tier


def positive_int(value: object) -> int | None:
    """`value` where it is a positive whole number, else None: JSON may hold anything."""
    return value if type(value) is int and value > 0 else None
