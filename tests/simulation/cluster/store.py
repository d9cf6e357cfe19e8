"""A store and a network between gateways that lose, double, reorder, delay, freeze and part."""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from gateway.cluster.messages import Message
from gateway.cluster.ports import LEASE_S, Bid, Leader, Standing

Act = Callable[[], None]


class Heap:
    """Virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Act]] = []
        self._number = 0

    def at(self, instant: float, act: Act) -> None:
        """Do it then, or now if that is past."""
        self._number += 1
        heappush(self._events, (max(instant, self.now), self._number, act))

    def after(self, delay_s: float, act: Act) -> None:
        """Do it so much later."""
        self.at(self.now + delay_s, act)

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heappop(self._events)
            act()
        self.now = until


@dataclass
class Store:
    """What the Lua scripts do, with a clock of its own."""

    heap: Heap
    leases: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    alive: dict[str, tuple[float, str]] = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)
    is_fenced: bool = True

    def beat(self, bid: Bid) -> Standing:
        """See `ports.Lease.beat`."""
        now = self.heap.now
        self.alive = {name: known for name, known in self.alive.items() if now - known[0] < LEASE_S}
        self.leases = {pool: held for pool, held in self.leases.items() if held[2] > now}
        for pool in (*bid.leaves, *(tuple(self.leases) if bid.goes else ())):
            if self._holder(pool) == bid.gateway:
                del self.leases[pool]
        if bid.goes:
            self.alive.pop(bid.gateway, None)
        else:
            self.alive[bid.gateway] = now, bid.about
        for pool, kept in bid.keeps.items():
            if self._holder(pool) == bid.gateway:
                self.kept[pool] = kept
        taken = {}
        for pool in bid.wants:
            if pool not in self.leases:
                if self.is_fenced or pool not in self.epochs:
                    self.epochs[pool] = max(self.epochs.get(pool, 0) + 1, int(now * 1e3))
                if pool in self.kept:
                    taken[pool] = self.kept[pool]
            if self._holder(pool) in (None, bid.gateway):
                self.leases[pool] = bid.gateway, self.epochs[pool], now + LEASE_S
        leaders = {
            pool: Leader(*self.leases[pool][:2])
            for pool in (*bid.wants, *bid.watches)
            if pool in self.leases
        }
        gateways = {name: about for name, (_, about) in self.alive.items()}
        return Standing(gateways=gateways, leaders=leaders, kept=taken)

    def forget(self) -> None:
        """It was restarted, and kept nothing."""
        self.leases, self.epochs, self.alive, self.kept = {}, {}, {}, {}

    def _holder(self, pool: str) -> str | None:
        held = self.leases.get(pool)
        return held[0] if held else None


@dataclass(frozen=True)
class Rates:
    """How often a single message meets with something, 0..1."""

    loss: float = 0.0
    doubled: float = 0.0
    reordered: float = 0.0


class Network:
    """Every message goes through the store; whoever is parted from it hears and says nothing."""

    def __init__(self, heap: Heap, dice: Random, rates: Rates) -> None:
        self.heap = heap
        self.rates = rates
        self.store = Store(heap)
        self.parted: set[str] = set()
        self.is_frozen = False
        self.inboxes: dict[str, Callable[[Message], None]] = {}
        self.sent = 0
        self._dice = dice
        self._last: dict[tuple[str, str], float] = {}
        self._thawed: list[Act] = []

    def post(self, sender: str, to: str, message: Message) -> None:
        """One message, and what becomes of it."""
        self.sent += 1
        dice, rates = self._dice, self.rates
        if sender in self.parted or dice.random() < rates.loss:
            return
        for _ in range(2 if dice.random() < rates.doubled else 1):
            arrives = self.heap.now + dice.uniform(0.0003, 0.002)
            if dice.random() < rates.reordered:
                arrives += dice.uniform(0.0, 0.4)
            else:
                arrives = max(arrives, self._last.get((sender, to), 0.0))
                self._last[sender, to] = arrives
            self._later(arrives, lambda: self._deliver(to, message))

    def bid(self, bid: Bid, answered: Callable[[Standing], None]) -> None:
        """Ask the store; no answer may come."""
        dice, name = self._dice, bid.gateway
        if name in self.parted:
            return

        def arrive() -> None:
            if name not in self.parted:
                standing = self.store.beat(bid)
                self.heap.after(dice.uniform(0.0002, 0.001), lambda: answered(standing))

        self._later(self.heap.now + dice.uniform(0.0002, 0.001), arrive)

    def freeze(self) -> None:
        """It answers nothing; what it was sent it may still do afterwards."""
        self.is_frozen = True

    def thaw(self) -> None:
        """It goes on."""
        self.is_frozen = False
        thawed, self._thawed = self._thawed, []
        for act in thawed:
            if self._dice.random() < 0.7:
                self.heap.after(0.0, act)

    def _later(self, arrives: float, act: Act) -> None:
        if self.is_frozen:
            self._thawed.append(act)
        else:
            self.heap.at(arrives, lambda: self._thawed.append(act) if self.is_frozen else act())

    def _deliver(self, to: str, message: Message) -> None:
        inbox = self.inboxes.get(to)
        if inbox is not None and to not in self.parted:
            inbox(message)
