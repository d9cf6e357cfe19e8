"""What a request will need, before anybody knows: prompt tokens from bytes, output from history.

No tokenizer runs in the hot path; both figures are learnt from the usage that engines report and
are wrong by design, which is why charges are settled at the end.

Output is learnt at three levels: for the user, for its tenant and for the model, each by route.
The narrowest one that has seen enough speaks. A level tells the next wider one of all its first
answers but of few later ones, so that a power user's are not taken for what a stranger will do.
"""

from collections import OrderedDict
from collections.abc import Mapping
from math import inf
from typing import Any, Final

from gateway.core.messages import Request, Usage
from gateway.core.quantiles import HALF_LIFE_SAMPLES, Quantiles
from gateway.core.rates import Mean

BYTES_PER_TOKEN: Final = 4.0
"""Start value for English text in common tokenizers; the ratio is then learnt per model."""
OUTPUT_TOKENS_UNSEEN: Final = 256
"""Predicted output where nobody like this client was ever seen and it set no max_tokens."""
LEARNING_SHARE: Final = 0.2
RATIO_PROMPT_TOKENS_MIN: Final = 16
"""Shorter prompts say nothing of the ratio: their body is mostly JSON."""
SAMPLES_MIN: Final = 3
"""Fewer answers say too little: their median is that of the next wider level. Of three, the median
already stands one that was unlike the others."""
REFRESH_SAMPLES: Final = 11
"""The median is worked out, and the next wider level told, at each of the first so many answers
and once in so many from there. Prime, since clients take turns: a chat, its title, a chat."""
FOLLOWED_SAMPLES: Final = HALF_LIFE_SAMPLES + REFRESH_SAMPLES
"""Within so many answers the median of a user follows a change, however old the former habit."""

MEDIAN: Final = 0.5
HALF: Final = 0.5

Key = tuple[str, ...]


class History:
    """The answers of one level: their lengths, and their median as last worked out."""

    __slots__ = ("lengths", "median")

    def __init__(self) -> None:
        self.lengths = Quantiles()
        self.median = 0
        """Tokens, at least 1; 0 while too little was seen."""


class Histories:
    """At most `entries_max` histories by key; the one that learnt longest ago goes first."""

    __slots__ = ("by_key", "entries_max")

    def __init__(self, entries_max: int) -> None:
        self.by_key: OrderedDict[Key, History] = OrderedDict()
        self.entries_max = entries_max

    def add(self, key: Key, output_tokens: float) -> bool:
        """Take in one answer; returns whether the next wider level should hear of it."""
        by_key = self.by_key
        history = by_key.get(key)
        if history is None:
            history = by_key[key] = History()
            self.trim()
        else:
            by_key.move_to_end(key)
        lengths = history.lengths
        lengths.add(output_tokens)
        count = lengths.count
        if count > REFRESH_SAMPLES and count % REFRESH_SAMPLES:
            return False
        if count >= SAMPLES_MIN:
            history.median = _whole(lengths.quantile(MEDIAN))
        return True

    def trim(self) -> None:
        """Drop what is beyond the bound."""
        while len(self.by_key) > self.entries_max:
            self.by_key.popitem(last=False)

    def snapshot(self) -> list[Any]:
        """From the one to be dropped first to the last."""
        return [
            [list(key), history.median, history.lengths.snapshot()]
            for key, history in self.by_key.items()
        ]

    def restored(self, data: list[Any]) -> "Histories":
        """Others of the same bound, with what `snapshot` gave."""
        other = Histories(self.entries_max)
        for key, median, lengths in data:
            history = other.by_key[tuple(map(str, key))] = History()
            history.lengths.restore(lengths)
            history.median = int(median)
            if (history.median > 0) != (history.lengths.count >= SAMPLES_MIN):
                raise ValueError("not a snapshot of predictions: a median does not fit its count")
        other.trim()
        return other


class Predictor:
    """Learns from settled requests; each of its tables holds at most `entries_max` entries."""

    __slots__ = ("_entries_max", "_models", "_tenants", "_tokens_per_byte", "_users")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._users = Histories(entries_max)
        self._tenants = Histories(entries_max)
        self._models = Histories(entries_max)
        self._tokens_per_byte: OrderedDict[str, Mean] = OrderedDict()

    def prompt_tokens(self, request: Request) -> int:
        """Prompt tokens of `request`: its own figure if it has one, else bytes x learnt ratio."""
        if request.prompt_tokens is not None:
            return request.prompt_tokens
        learnt = self._tokens_per_byte.get(request.model)
        ratio = 1.0 / BYTES_PER_TOKEN
        if learnt is not None and learnt.value is not None:
            ratio = learnt.value
        return int(request.body_bytes * ratio + HALF) or 1

    def output_tokens(self, request: Request, quantile: float = MEDIAN) -> int:
        """Output tokens per sequence that a share `quantile` of such answers do not exceed.

        At least 1 and at most the request's own maximum; 0 where that is 0.
        """
        limit = request.output_tokens_max
        if limit == 0:
            return 0
        history = self._known(request)
        if history is None:
            expected = OUTPUT_TOKENS_UNSEEN
        elif quantile == MEDIAN:
            expected = history.median
        else:
            expected = _whole(history.lengths.quantile(quantile))
        return expected if limit is None or expected < limit else limit

    def learn(self, request: Request, usage: Usage) -> None:
        """Take in what `request` really used."""
        limit = request.output_tokens_max
        if limit != 0:
            produced = (usage.output_tokens or 1) / request.sequences
            # An answer cut off where that was foreseen does not tell how long it would have been:
            # clients that ask for one token now and then must not look like ones of short answers.
            if limit is None or produced < limit or self.output_tokens(request) < limit:
                model, tenant, route = request.model, request.tenant, request.route
                if self._users.add(
                    (model, tenant, request.user, route), produced
                ) and self._tenants.add((model, tenant, route), produced):
                    self._models.add((model, route), produced)
        if request.body_bytes and usage.prompt_tokens >= RATIO_PROMPT_TOKENS_MIN:
            self._mean_of(request.model).add(usage.prompt_tokens / request.body_bytes)

    def resize(self, entries_max: int) -> None:
        """Hold at most so many entries in each table from now on."""
        self._entries_max = entries_max
        for level in (self._users, self._tenants, self._models):
            level.entries_max = entries_max
            level.trim()
        self._trim_ratios()

    def snapshot(self) -> dict[str, Any]:
        """All that was learnt, in plain values that survive JSON exactly."""
        return {
            "users": self._users.snapshot(),
            "tenants": self._tenants.snapshot(),
            "models": self._models.snapshot(),
            "tokens_per_byte": [
                [model, mean.value] for model, mean in self._tokens_per_byte.items()
            ],
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave, within the own bound.

        Raises ValueError, and leaves everything as it was, on anything else.
        """
        try:
            users = self._users.restored(data["users"])
            tenants = self._tenants.restored(data["tenants"])
            models = self._models.restored(data["models"])
            ratios = OrderedDict(
                (str(model), _mean(float(value))) for model, value in data["tokens_per_byte"]
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a snapshot of predictions: {error!r}") from error
        self._users, self._tenants, self._models = users, tenants, models
        self._tokens_per_byte = ratios
        self._trim_ratios()

    def _known(self, request: Request) -> History | None:
        model, tenant, route = request.model, request.tenant, request.route
        history = self._users.by_key.get((model, tenant, request.user, route))
        if history is not None and history.median:
            return history
        history = self._tenants.by_key.get((model, tenant, route))
        if history is not None and history.median:
            return history
        history = self._models.by_key.get((model, route))
        if history is not None and history.median:
            return history
        return None

    def _mean_of(self, model: str) -> Mean:
        means = self._tokens_per_byte
        mean = means.get(model)
        if mean is None:
            mean = means[model] = Mean(LEARNING_SHARE)
            self._trim_ratios()
        else:
            means.move_to_end(model)
        return mean

    def _trim_ratios(self) -> None:
        while len(self._tokens_per_byte) > self._entries_max:
            self._tokens_per_byte.popitem(last=False)


def _whole(output_tokens: float | None) -> int:
    assert output_tokens is not None, "asked of a history without any answer"
    return max(1, round(output_tokens))


def _mean(tokens_per_byte: float) -> Mean:
    if not 0.0 < tokens_per_byte < inf:
        raise ValueError("not a snapshot of predictions: a ratio is out of its range")
    mean = Mean(LEARNING_SHARE)
    mean.value = tokens_per_byte
    return mean
