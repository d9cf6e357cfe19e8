"""What is known of a replica: where the configuration says it is, and what it says of itself.

It decides how a replica is called and how its model cards are read; it opens no connection.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from urllib.parse import urlsplit

ModelCard = Mapping[str, object]

_DEFAULT_PORTS = MappingProxyType({"http": 80, "https": 443})


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """One engine as configured. Its key, and a URL that may hold one, stay out of `repr`."""

    name: str
    url: str = field(repr=False)
    """Scheme, host, port and perhaps a path in front of the engine's routes."""
    _: KW_ONLY
    models: frozenset[str] | None = None
    """The model names it serves; None: those it lists itself."""
    engine: str | None = None
    """The dialect's name; None: told from what it answers."""
    max_num_seqs: int | None = None
    """Sequences one of its engines runs at a time; None: asked or learnt."""
    scheduling_policy: str = "fcfs"
    weight: float = 1.0
    api_key: str | None = field(default=None, repr=False)
    ca_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """What the probe last saw of a replica: for `/readyz`, `/v1/models` and `fairgate check`."""

    up: bool = False
    engine: str | None = None
    """The dialect's name, as configured or as found; None while unknown."""
    engines: int = 1
    """Data-parallel engines behind the address."""
    slots: int | None = None
    """Sequences the whole replica runs at a time, where configured or told."""
    models: Mapping[str, int | None] = field(default_factory=dict)
    """Model names offered and the tokens one request may have there; None where it is not said."""
    cards: Mapping[str, ModelCard] = field(default_factory=dict)
    """The engine's own entries of `/v1/models` by id, unchanged."""
    last_success_at: float | None = None
    """On the probe's clock."""
    away_at: float | None = None
    """When it was last found that nobody listens there, or that nobody answers any more."""
    last_error: str | None = None
    """Why the last attempt failed; None after a round without failure. Never holds a URL."""
    detail: str | None = None
    """What an operator should know though the replica answers."""
    missing: tuple[str, ...] = ()
    """Metric names this kind of engine should have and does not."""
    misses: int = 0
    """Rounds in a row without any answer."""


def replica_name(url: str) -> str:
    """A short stable name for the replica at `url`: host-port, and the path where there is one.

    It never holds the scheme, user or password. ValueError where the URL names no host or no
    usable port.
    """
    parts = urlsplit(url)
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    if not parts.hostname or port is None:
        raise ValueError("a replica's address needs a scheme, a host and a port")
    # The colons of an IPv6 address would read as a port.
    host = parts.hostname.replace(":", "_")
    path = "-".join(filter(None, parts.path.split("/")))
    return f"{host}-{port}-{path}" if path else f"{host}-{port}"


def model_cards(answer: object) -> dict[str, ModelCard]:
    """The cards of a `/v1/models` answer by id, in order; what is no card is passed over."""
    data = answer.get("data") if isinstance(answer, dict) else None
    cards: dict[str, ModelCard] = {}
    for card in data if isinstance(data, list) else []:
        identity = card.get("id") if isinstance(card, dict) else None
        if isinstance(identity, str) and identity:
            cards[identity] = card
    return cards


def context_lengths(cards: Mapping[str, ModelCard]) -> dict[str, int | None]:
    """Tokens one request may have, per model; an adapter without a figure has its parent's."""
    return {name: _context_length(card, cards) for name, card in cards.items()}


def _context_length(card: ModelCard, cards: Mapping[str, ModelCard]) -> int | None:
    parent = card.get("parent")
    family = (card, cards.get(parent, {}) if isinstance(parent, str) else {})
    for member in family:
        length = member.get("max_model_len")
        if type(length) is int and length > 0:
            return length
    return None
