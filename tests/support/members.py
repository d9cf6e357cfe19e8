"""Some gateways that are joined in memory: messages come at once and in order, the store obeys."""

from collections import deque
from collections.abc import Mapping

from gateway.cluster.member import Member
from gateway.cluster.messages import Message
from gateway.cluster.ports import BEAT_S, Bid, Leader, Standing
from gateway.core import invariants
from gateway.core.messages import (
    Arrived,
    Decision,
    Event,
    Granted,
    Refused,
    ReplicaFound,
    Request,
    WakeWanted,
    Woke,
)
from gateway.core.policy import Policy
from gateway.core.scheduler import Scheduler
from tests.support.script import one_tier

MODEL = "m"


class Site:
    """One of them, and what was decided about its own requests."""

    def __init__(self, joined: "Joined", name: str, policy: Policy) -> None:
        self.joined = joined
        self.scheduler = Scheduler(policy)
        self.member = Member(name, self.scheduler, joined.post)
        self.granted: dict[str, str] = {}
        """Replica by request id."""
        self.refused: dict[str, Refused] = {}
        self.woke_at = float("inf")

    def tell(self, event: Event) -> None:
        """As its dispatcher does, and everything that follows from it."""
        self.carry_out(self.member.handle(event, self.joined.now))
        self.joined.deliver()

    def arrive(self, id: str, **changes: object) -> None:
        """One of its clients asks for something."""
        known = {"model": MODEL, "tier": 0, "tenant": "t", "user": "u", "output_tokens_max": 10}
        self.tell(Arrived(Request(id=id, arrived_at=self.joined.now, **{**known, **changes})))  # type: ignore[arg-type]  # free keywords

    def find(self, replica: str, *, slots: int = 1, models: frozenset[str] | None = None) -> None:
        """It finds an engine."""
        serves = frozenset({MODEL}) if models is None else models
        self.tell(ReplicaFound(replica=replica, models=serves, slots=slots))

    def carry_out(self, decisions: list[Decision]) -> None:
        """Note what is decided."""
        for decision in decisions:
            match decision:
                case Granted():
                    assert decision.request_id not in self.granted, "nobody runs twice"
                    self.granted[decision.request_id] = decision.replica
                case Refused():
                    self.refused[decision.request_id] = decision
                case WakeWanted():
                    self.woke_at = decision.at
        invariants.check(self.scheduler)


class Joined:
    """All of them, and one clock."""

    def __init__(self, *names: str, policy: Policy | None = None) -> None:
        self.now = 100.0
        self.leaders: dict[str, Leader] = {}
        self.kept: dict[str, bytes] = {}
        self.gone: set[str] = set()
        """Those that nothing reaches."""
        self._line: deque[tuple[str, Message]] = deque()
        self.sites = {name: Site(self, name, policy or one_tier()) for name in names}

    def post(self, to: str, message: Message) -> None:
        """On its way."""
        self._line.append((to, message))

    def deliver(self) -> None:
        """Until nobody has anything more to say."""
        while self._line:
            to, message = self._line.popleft()
            if to in self.sites and to not in self.gone and message.sender not in self.gone:
                site = self.sites[to]
                site.carry_out(site.member.heard([message], self.now))

    def lead(self, name: str, *, epoch: int, pool: str = MODEL) -> None:
        """From now on that one leads, and everybody learns it."""
        self.leaders[pool] = Leader(name, epoch)
        self.beat()

    def beat(self, *names: str) -> None:
        """Everybody's heartbeat, or of those named."""
        self.now += BEAT_S
        for name in names or tuple(self.sites):
            if name not in self.gone:
                self._beat(self.sites[name])

    def apart(self) -> None:
        """Everybody lost the store."""
        for site in self.sites.values():
            site.carry_out(site.member.apart(self.now))
        self.deliver()

    def asks(self, name: str) -> Bid:
        """What that one would ask the store for."""
        return self.sites[name].member.bid(self.now)

    def _beat(self, site: Site) -> None:
        if self.now >= site.woke_at:
            site.woke_at = float("inf")
            site.tell(Woke())
        bid = site.member.bid(self.now)
        self.kept.update(bid.keeps)
        asked: Mapping[str, Leader] = {
            pool: self.leaders[pool] for pool in (*bid.wants, *bid.watches) if pool in self.leaders
        }
        living = dict.fromkeys((name for name in self.sites if name not in self.gone), "")
        standing = Standing(gateways=living, leaders=asked, kept=self.kept)
        site.carry_out(site.member.stands(standing, self.now, asked_at=self.now))
        site.carry_out(site.member.beat(self.now))
        self.deliver()
