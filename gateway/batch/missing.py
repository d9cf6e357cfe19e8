"""Models that nobody serves at the moment, and how long a batch waits for them.

An engine that is started anew lists its models again after minutes, and all lines of a batch would
fail meanwhile. A model that stays away is given up, for all lines at once.
"""

import msgspec

PATIENCE_S = 600.0
MODELS_MAX = 100
"""Models of one batch that are waited for at once."""


class Missing:
    """The models that one batch has asked for in vain."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._since: dict[str, float] = {}

    def waits(self, body: bytes, now: float) -> bool:
        """Whether a request whose model was not there is to be asked again."""
        model = model_of(body)
        if model is None or (model not in self._since and len(self._since) >= MODELS_MAX):
            return False
        return now - self._since.setdefault(model, now) < self._patience_s

    def served(self, body: bytes) -> None:
        """A request was answered: its model is there."""
        if self._since:
            self._since.pop(model_of(body) or "", None)


class _Model(msgspec.Struct):
    model: str


_MODELS = msgspec.json.Decoder(_Model)


def model_of(body: bytes) -> str | None:
    """Of a request; None where it names none."""
    try:
        return _MODELS.decode(body).model
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
