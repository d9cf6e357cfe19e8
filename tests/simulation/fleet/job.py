"""One request and what became of it; what was asked for is frozen, the rest is filled in."""

from dataclasses import dataclass, field

from gateway.core.messages import Outcome, Reason, Request


@dataclass(frozen=True, slots=True)
class Size:
    """What a request will need; `output_tokens` is the truth that no gateway knows."""

    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    sequences: int = 1


@dataclass(slots=True)
class Job:
    """Instants in seconds of the virtual clock, as the gateway saw them unless it says engine."""

    request: Request
    size: Size
    is_foreign: bool = False
    """It goes to the engine directly; the gateway never hears of it."""
    replica: str | None = None
    granted_at: float | None = None
    accepted_at: float | None = None
    """Engine: it entered the queue there."""
    is_admitted: bool = False
    """Engine: one of its sequences was part of a step."""
    first_token_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    reason: Reason | None = None
    is_heard: bool = False
    """A first token left the engine for it."""
    first_made_at: float = 0.0
    last_made_at: float = 0.0
    produced: int = 0
    """Output tokens of all its sequences so far."""
    cached_tokens: int = 0
    computed_tokens: int = 0
    """Prompt tokens the engine computed for it, those of broken attempts included."""
    alive: set[str] = field(default_factory=set)
    """Ids of its sequences inside the engine."""
    replicas: list[str] = field(default_factory=list)
    """Where it was granted, in order."""
    recalled_at: list[float] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """Tokens weighted as the default policy does, if it runs to its end."""
        size = self.size
        return size.prompt_tokens + 2.0 * size.output_tokens * size.sequences

    @property
    def served(self) -> float:
        """The same for what the engine did so far; cached prompt tokens at a tenth."""
        return self.computed_tokens + 0.1 * self.cached_tokens + 2.0 * self.produced

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        at = self.first_token_at
        return None if at is None else at - self.request.arrived_at

    @property
    def wait_s(self) -> float | None:
        """Arrival to the (last) grant."""
        return None if self.granted_at is None else self.granted_at - self.request.arrived_at

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds between its tokens; None for fewer than two or several sequences."""
        if self.produced < 2 or self.size.sequences > 1:
            return None
        return (self.last_made_at - self.first_made_at) / (self.produced - 1)
