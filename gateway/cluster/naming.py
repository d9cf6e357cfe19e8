"""What the pools of a gateway's scheduler are called: each by its smallest model.

All gateways that have found the same replicas call the same pools by the same names.
"""

from gateway.core.pool import Pool


class PoolNames:
    """The names as of when they were last looked at."""

    __slots__ = ("_pools", "by_model")

    def __init__(self) -> None:
        self._pools: list[Pool] = []
        self.by_model: dict[str, str] = {}
        """Name of the pool that serves a model."""

    def is_of(self, pools: list[Pool]) -> bool:
        """Whether these very pools were named last: they are made anew whenever they change."""
        return pools is self._pools

    def name(self, pools: list[Pool]) -> set[str] | None:
        """Name them; returns the names that are no more, None where every model's is the same."""
        before, self._pools = self.by_model, pools
        self.by_model = {
            model: name for pool in pools for name in [min(pool.models)] for model in pool.models
        }
        return None if before == self.by_model else self.known(before) - self.known(self.by_model)

    def known(self, by_model: dict[str, str] | None = None) -> set[str]:
        """All names."""
        return set((self.by_model if by_model is None else by_model).values())
