"""A store of what was spent, shared by several gateways of one test, that can be out of reach."""

from collections.abc import Mapping, Sequence

from gateway.tenancy.store.port import StoreError


class FakeSums:
    """`Store.spend` and `Store.spent` in a dictionary."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, str], int] = {}
        self.told: list[Mapping[tuple[str, str], int]] = []
        """What came with each call."""
        self.is_lost = False
        self.reads = 0

    async def spent(self, periods: Sequence[str]) -> Mapping[tuple[str, str], int]:
        """By holder and period."""
        self._reach()
        self.reads += 1
        return {key: total for key, total in self.totals.items() if key[1] in periods}

    async def spend(self, amounts: Mapping[tuple[str, str], int]) -> None:
        """Add."""
        self._reach()
        self.told.append(dict(amounts))
        for key, amount in amounts.items():
            self.totals[key] = self.totals.get(key, 0) + amount

    def _reach(self) -> None:
        if self.is_lost:
            raise StoreError("the disk is gone")
