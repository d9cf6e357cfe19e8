"""One request on its way through an engine of the paper: what is left of it, and when it got what.

Decides nothing; an engine and the event loop are the only ones that change it.
"""


class Request:
    """Lengths in tokens, instants in seconds since the run began; None: not yet."""

    __slots__ = (
        "number",
        "arrived_at",
        "tier",
        "prefill_tokens",
        "total_tokens",
        "computed_tokens",
        "is_decoding",
        "started_at",
        "first_token_at",
        "ended_at",
        "restarts",
    )

    def __init__(
        self, number: int, arrived_at: float, tier: int, *, prompt_tokens: int, output_tokens: int
    ) -> None:
        assert prompt_tokens >= 1
        assert output_tokens >= 1
        self.number = number
        self.arrived_at = arrived_at
        self.tier = tier
        self.prefill_tokens = prompt_tokens
        """What the next prefill computes: the prompt, after a restart also what was produced."""
        self.total_tokens = prompt_tokens + output_tokens
        self.computed_tokens = 0
        """Prompt and produced tokens so far; the newest one's KV comes with the next step."""
        self.is_decoding = False
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.restarts = 0

    def advance(self, now: float) -> bool:
        """One step of it is done: a whole prefill with its first token, or one token more.

        Returns whether that was its end.
        """
        if self.is_decoding:
            self.computed_tokens += 1
        else:
            self.computed_tokens = self.prefill_tokens + 1
            self.is_decoding = True
            if self.first_token_at is None:
                self.first_token_at = now
        if self.computed_tokens < self.total_tokens:
            return False
        self.ended_at = now
        return True

    def restart(self) -> None:
        """Lose all KV: what was produced becomes part of the next prefill."""
        self.prefill_tokens = self.computed_tokens
        self.computed_tokens = 0
        self.is_decoding = False
        self.restarts += 1
