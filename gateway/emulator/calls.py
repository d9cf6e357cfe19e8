"""A generation request, understood: from which tokens, how many, in which form.

Refuses what the real engine refuses about values that are well-formed, with the same words;
`parsing.py` deals with those that are not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.emulator.refusals import bad_request, unknown_model
from gateway.emulator.tools import Chosen
from gateway.emulator.vocabulary import Vocabulary

COMPLETION_TOKENS_DEFAULT = 16
SEQUENCES_MAX = 1024
"""n x prompts of one request; a bound of this server, not the engine's."""

Form = Literal["chat", "completion", "response", "message", "transcription", "translation"]
Turn = tuple[str, str]
"""(role, text)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What calls are checked against."""

    models: tuple[str, ...]
    """The base model first."""
    context_tokens: int
    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """When a stream reports usage."""

    include_usage: bool = False
    continuous: bool = False
    """With every event, not only in one of its own at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One generation request."""

    form: Form
    model: str
    prompts: tuple[tuple[int, ...], ...]
    n: int = 1
    max_tokens: int | None = None
    """What was asked for; None: the form's default."""
    priority: int = 0
    stops: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    penalises_output: bool = False
    """A penalty is set that counts the output's tokens only."""
    seed: int | None = None
    streams: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    ignores_end: bool = False
    """It goes on to `max_tokens` whatever the model would like."""
    min_tokens: int = 0
    """No end by itself before so many."""
    top_logprobs: int | None = None
    """Alternatives shown with the probability of each token; None: no probabilities."""
    tool: Chosen | None = None
    """The tool it will call; then its output are the arguments."""
    script: tuple[int, ...] | None = None
    """What it will say, whatever the prompt; None: what follows from the prompt."""
    turns: tuple[Turn, ...] = ()
    """The conversation so far, where later requests may go on from it."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the request that its answer repeats."""

    @property
    def is_greedy(self) -> bool:
        """Whether each token depends on the tokens before it alone, so that it can be continued."""
        return self.temperature == 0 and not self.penalises_output

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts; each counts once, whatever n."""
        return sum(map(len, self.prompts))

    def tokens_max(self, prompt: Sequence[int], context_tokens: int) -> int:
        """Most tokens of the answer to this prompt."""
        room = context_tokens - len(prompt)
        if self.max_tokens is not None:
            return min(self.max_tokens, room)
        return min(COMPLETION_TOKENS_DEFAULT, room) if self.form == "completion" else room

    def check(self, card: Card) -> "Call":
        """Itself, when the engine would take it.

        Raises:
            Refusal: 404 for a model that is not served, 400 for values that are not possible.
        """
        self._check_model(card)
        self._check_sampling()
        limit = card.context_tokens
        if self.max_tokens is not None and self.max_tokens > limit:
            raise bad_request(
                f"max_tokens={self.max_tokens} cannot be greater than max_model_len={limit}. "
                "Please request fewer output tokens.",
                param="max_tokens",
                value=self.max_tokens,
            )
        for prompt in self.prompts:
            self._check_prompt(prompt, card)
            self._check_room(prompt, card)
        return self

    def check_prompts(self, card: Card) -> "Call":
        """Itself, when the engine would read its prompts without going on from them.

        Raises:
            Refusal: as `check`.
        """
        self._check_model(card)
        for prompt in self.prompts:
            self._check_prompt(prompt, card)
        return self

    def _check_model(self, card: Card) -> None:
        if self.model not in card.models:
            raise unknown_model(self.model, card.models[0])

    def _check_sampling(self) -> None:
        if self.stream_options is not None and not self.streams:
            message = "Stream options can only be defined when `stream=True`."
            raise bad_request(message, param="stream_options")
        if self.temperature < 0:
            message = f"temperature must be non-negative, got {self.temperature}."
            raise bad_request(message, param="temperature", value=self.temperature)
        if not 0 < self.top_p <= 1:
            message = f"top_p must be in (0, 1], got {self.top_p}."
            raise bad_request(message, param="top_p", value=self.top_p)
        if self.n < 1:
            raise bad_request(f"n must be at least 1, got {self.n}.")
        if self.n > 1 and self.temperature == 0:
            raise bad_request(f"n must be 1 when using greedy sampling, got {self.n}.")
        if self.n * len(self.prompts) > SEQUENCES_MAX:
            raise bad_request(f"at most {SEQUENCES_MAX} sequences a request")

    def _check_prompt(self, prompt: tuple[int, ...], card: Card) -> None:
        if not prompt:
            raise bad_request("The decoder prompt cannot be empty")
        known = len(card.vocabulary)
        for id in prompt:
            if not 0 <= id < known:
                raise bad_request(f"Token id {id} is out of vocabulary")
        limit, tokens = card.context_tokens, len(prompt)
        if tokens > limit:
            # The engine stops tokenising at one token too many.
            shown = tokens if self.form == "completion" else limit + 1
            at_least = "at least " if shown == limit + 1 else ""
            raise bad_request(
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains {at_least}{shown} input tokens, which exceeds this limit even without "
                "any output tokens. Please reduce the length of the input prompt.",
                param="input_tokens",
                value=shown,
            )

    def _check_room(self, prompt: tuple[int, ...], card: Card) -> None:
        room = self.tokens_max(prompt, card.context_tokens)
        if room < 1:
            message = f"max_tokens must be at least 1, got {room}."
            raise bad_request(message, param="max_tokens", value=room)
