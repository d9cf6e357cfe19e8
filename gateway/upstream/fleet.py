"""All replicas this gateway knows: their clients, their probes and what they serve.

It tells the scheduler what is found and lost; which replica a request goes to is not decided here.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.core.messages import DrainAsked, Event, ReplicaRemoved
from gateway.upstream.client import EngineClient
from gateway.upstream.connection import UpstreamBrokenError
from gateway.upstream.dialects.registry import by_name
from gateway.upstream.probe import Probe
from gateway.upstream.replicas import ModelCard, ReplicaAddress, ReplicaStatus

HEARD_INTERVALS = 3
"""A replica whose bytes arrived within so many scrape intervals is alive, whatever a probe says."""

HANDOVER_S = 5.0
"""A replica that is replaced waits so long for its successors to answer."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a replica needs, before it is one of the fleet."""

    address: ReplicaAddress
    client: EngineClient
    probe: Probe


@dataclass(slots=True)
class Member:
    """One replica of the fleet."""

    address: ReplicaAddress
    client: EngineClient
    probe: Probe
    task: "asyncio.Task[None]"
    is_retiring: bool = False
    """Whether it is no longer wanted, and forgotten once it is empty."""
    serves_until: float | None = None
    """While it retires: it is drained then, or when its successors answer; None: it is."""


class Fleet:
    """Replicas by name. `run_in` must be entered before `add`."""

    def __init__(
        self,
        *,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
        scrape_interval_s: float,
        stream_buffer_bytes: int,
        is_hungry: Callable[[str], bool],
    ) -> None:
        """`is_hungry(name)`: whether that replica should be scraped faster to learn its slots."""
        self._tell = tell
        self._clock = clock
        self._scrape_interval_s = scrape_interval_s
        self._stream_buffer_bytes = stream_buffer_bytes
        self._is_hungry = is_hungry
        self._members: dict[str, Member] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def run_in(self, tasks: asyncio.TaskGroup) -> None:
        """Probes run as tasks of this group from now on."""
        self._tasks = tasks

    def add(self, address: ReplicaAddress) -> None:
        """Start to watch a replica; a known name is drained no more."""
        known = self._members.get(address.name)
        if known is None or known.address != address:
            self.enter(self.make(address))
        if known is not None:
            member = self._members[address.name]
            member.is_retiring, member.serves_until = False, None
            self._tell(DrainAsked(address.name, draining=False))

    def make(self, address: ReplicaAddress) -> Made:
        """All that a replica needs; nothing is changed yet.

        Raises OSError where its certificates cannot be read.
        """
        client = EngineClient(
            address, buffer_bytes_max=self._stream_buffer_bytes, clock=self._clock
        )
        probe = Probe(
            address,
            tell=self._tell,
            clock=self._clock,
            interval_s=self._scrape_interval_s,
            jitter=random.random,
            wants_fast=lambda: self._is_hungry(address.name),
            is_heard=lambda: self._is_heard(client),
        )
        return Made(address, client, probe)

    def enter(self, made: Made) -> None:
        """Start to watch it; under a known name in the other's place, whose streams go on."""
        assert self._tasks is not None, "run_in comes first"
        name = made.address.name
        known = self._members.get(name)
        if known is not None:
            known.task.cancel()
            known.client.close()
            made.client.follow(known.client)
            made.probe.follow(known.probe)
        task = self._tasks.create_task(made.probe.run())
        member = self._members[name] = Member(made.address, made.client, made.probe, task)
        if known is not None:
            member.is_retiring, member.serves_until = known.is_retiring, known.serves_until

    def drain(self, name: str) -> None:
        """Nothing new goes to a replica, what runs is finished."""
        if name in self._members:
            self._tell(DrainAsked(name))

    def retire(self, name: str, *, is_replaced: bool = False) -> None:
        """A replica is no longer wanted: it is drained, and forgotten by `sweep` once empty.

        `is_replaced`: others come in its place, and it serves until they answer, for
        `HANDOVER_S` at most.
        """
        member = self._members.get(name)
        if member is None or member.is_retiring:
            return
        member.is_retiring = True
        if is_replaced:
            member.serves_until = self._clock() + HANDOVER_S
        else:
            self._tell(DrainAsked(name))

    def keep(self, name: str) -> None:
        """A replica is wanted again; one that is drained for another reason stays so."""
        member = self._members.get(name)
        if member is not None and member.is_retiring:
            member.is_retiring = False
            if member.serves_until is None:
                self._tell(DrainAsked(name, draining=False))
            member.serves_until = None

    def sweep(self, is_empty: Callable[[str], bool]) -> list[str]:
        """Drain those whose successors answer; forget those that are drained and empty.

        Returns the names of the latter.
        """
        retiring = [name for name, member in self._members.items() if member.is_retiring]
        is_handed_over = all(
            member.is_retiring or member.probe.status.up for member in self._members.values()
        )
        gone = []
        for name in retiring:
            member = self._members[name]
            if member.serves_until is not None:
                if not is_handed_over and self._clock() < member.serves_until:
                    continue
                member.serves_until = None
                self._tell(DrainAsked(name))
            if is_empty(name):
                self.remove(name)
                gone.append(name)
        return gone

    def configure(self, *, scrape_interval_s: float, stream_buffer_bytes: int) -> None:
        """From now on, for all replicas."""
        self._scrape_interval_s = scrape_interval_s
        self._stream_buffer_bytes = stream_buffer_bytes
        for member in self._members.values():
            member.probe.interval_s = scrape_interval_s
            member.client.buffer_bytes_max = stream_buffer_bytes

    def remove(self, name: str) -> None:
        """Forget a replica; its running streams end by themselves."""
        member = self._members.pop(name, None)
        if member is not None:
            member.task.cancel()
            member.client.close()
            self._tell(ReplicaRemoved(name))

    def address(self, name: str) -> ReplicaAddress | None:
        """Where a replica is, as configured; None: there is none of that name."""
        member = self._members.get(name)
        return None if member is None else member.address

    def is_wanted(self, name: str) -> bool:
        """Whether it is one of the replicas that there should be."""
        member = self._members.get(name)
        return member is not None and not member.is_retiring

    def names(self) -> frozenset[str]:
        """All replicas, by name."""
        return frozenset(self._members)

    def client(self, name: str) -> EngineClient:
        """The client of a replica that was granted.

        Raises UpstreamBrokenError for one that was removed since.
        """
        member = self._members.get(name)
        if member is None:
            raise UpstreamBrokenError("the replica was removed", is_fresh=True, fault=None)
        return member.client

    def engine_priority(self, name: str, tier: int, tiers: int) -> int | None:
        """The tier in the engine's own polarity, or None where it schedules first come first."""
        member = self._members.get(name)
        if member is None or member.address.scheduling_policy != "priority":
            return None
        engine = member.probe.status.engine
        return by_name(engine).priority_value(tier, tiers) if engine else None

    def tells_token_ids(self, name: str) -> bool:
        """Whether its engine tells token ids and goes on from them; False while that is unknown."""
        member = self._members.get(name)
        engine = None if member is None else member.probe.status.engine
        return engine is not None and by_name(engine).tells_token_ids

    def takes_cache_salt(self, name: str) -> bool:
        """Whether its engine keeps prompts of different `cache_salt` apart; False while unknown."""
        member = self._members.get(name)
        engine = None if member is None else member.probe.status.engine
        return engine is not None and by_name(engine).takes_cache_salt

    def has_answered_since(self, name: str, instant: float) -> bool:
        """Whether its probe had an answer after `instant`."""
        member = self._members.get(name)
        at = None if member is None else member.probe.status.last_success_at
        return at is not None and at > instant

    def context_tokens(self, name: str, model: str) -> int | None:
        """Tokens that one request may have there, prompt and output together; None: not said."""
        member = self._members.get(name)
        return None if member is None else member.probe.status.models.get(model)

    def statuses(self) -> dict[str, ReplicaStatus]:
        """What each probe last saw."""
        return {name: member.probe.status for name, member in self._members.items()}

    def lists(self, model: str) -> bool:
        """Whether any replica that is up lists this model: asked for every request."""
        return any(
            model in member.probe.status.cards
            and (member.address.models is None or model in member.address.models)
            for member in self._members.values()
        )

    def cards(self) -> Mapping[str, ModelCard]:
        """The engines' model cards by id, of replicas that are up; the first replica's wins."""
        cards: dict[str, ModelCard] = {}
        for member in self._members.values():
            configured = member.address.models
            for model, card in member.probe.status.cards.items():
                if configured is None or model in configured:
                    cards.setdefault(model, card)
        return cards

    def _is_heard(self, client: EngineClient) -> bool:
        horizon = self._clock() - HEARD_INTERVALS * self._scrape_interval_s
        return client.heard_at is not None and client.heard_at >= horizon

    def close(self) -> None:
        """Stop all probes and close what is idle."""
        for name in list(self._members):
            self.remove(name)
