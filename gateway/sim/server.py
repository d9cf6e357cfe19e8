"""An engine behind its HTTP server, with everything that can be wrong with it.

The engine inside is `replica.Engine`; this adds what vLLM does around it: what it answers when it
is busy, drained, killed or stopped, and what its metrics then say. It knows nothing of gateways.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from gateway.core.report import ReplicaReport
from gateway.sim.clock import Clock
from gateway.sim.engine_config import EngineConfig
from gateway.sim.faults import Fault, FaultKind
from gateway.sim.link import Link, Said, Word
from gateway.sim.profiles import DEMO, Profile
from gateway.sim.replica import Engine
from gateway.sim.sequence import Sequence, TokenOut

BUSY = 503
FAULTY = 500
BAD = 400
CROWD = 5
"""Requests that one which lies says it has beyond its slots."""
DOWN = (FaultKind.CRASH, FaultKind.CORE_KILLED, FaultKind.TERMINATED)
"""While one of these lasts there is no process, or none that does anything."""
STILL = (FaultKind.FROZEN, FaultKind.STOPPED)
"""While one of these lasts the core does nothing."""
FOREIGN_PROMPT_TOKENS = 100
FOREIGN_OUTPUT_TOKENS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One engine of a fleet, and what it tells about itself."""

    name: str
    slots: int = 4
    profile: Profile = DEMO
    models: frozenset[str] = frozenset({"m"})
    tells_slots: bool = True
    kv_blocks: int | None = None
    """None: the profile's own."""
    is_measured: bool = True
    """Whether it has metrics at all."""
    orders_by_tier: bool = False
    """Whether what waits in it begins by tier."""


@dataclass(slots=True)
class Histograms:
    """Sums and counts of the time between two tokens."""

    itl_s: float = 0.0
    itls: int = 0


class Server:
    """One process after another under one name."""

    def __init__(self, spec: ServerSpec, clock: Clock) -> None:
        self.spec = spec
        self.active: Counter[FaultKind] = Counter()
        """What is wrong with it now."""
        self.is_down = False
        """There is no process, or one that has closed its door."""
        self.is_still = False
        """Its core does nothing."""
        self.listens = True
        """Whether new connections are accepted."""
        self.slowness = 1.0
        self.starts = 0
        self._clock = clock
        self._links: dict[str, Link] = {}
        """Requests it has accepted and not ended, by their connection's id."""
        self._parked: list[Link] = []
        """Connections that the kernel accepted and nobody has looked at."""
        self._left: list[Link] = []
        """Connections that were closed while it did nothing."""
        self._forgotten: list[Link] = []
        """Connections that are open, and nothing will be said on them."""
        self._stale: ReplicaReport | None = None
        self._foreign = 0
        self._foreign_open = 0
        self._busy_answers = 0
        self.start()

    @property
    def at_work(self) -> int:
        """Sequences of the gateway in its engine."""
        return self.engine.running + self.engine.waiting - self._foreign_open

    @property
    def links(self) -> Iterable[Link]:
        """Connections whose requests it works on."""
        return self._links.values()

    def start(self) -> None:
        """A new process with nothing in it."""
        spec = self.spec
        blocks = spec.profile.kv_blocks if spec.kv_blocks is None else spec.kv_blocks
        self.starts += 1
        config = EngineConfig(
            max_num_seqs=spec.slots,
            kv_blocks=blocks,
            policy="priority" if spec.orders_by_tier else "fcfs",
        )
        self.engine = Engine(spec.profile, config)
        self._histograms = Histograms()
        self._is_due = False
        self._foreign_open = 0
        self._links.clear()
        self._left.clear()
        self._forgotten.clear()

    # --- what clients do ------------------------------------------------------------------------

    def connect(self, link: Link) -> None:
        """A request is sent; it is here one hop later."""
        self._clock.after(link.hop_s, partial(self._accept, link))

    def hang_up(self, link: Link) -> None:
        """The other end closes the connection, which is seen here one hop later."""
        link.is_left = True
        self._clock.after(link.hop_s, partial(self._abandon, link))

    def _accept(self, link: Link) -> None:
        if link.is_left:
            return
        if not self.listens:
            link.say(Said(Word.REFUSED))
        elif self.active[FaultKind.STOPPED]:
            self._parked.append(link)
        else:
            self._read(link)

    def _read(self, link: Link) -> None:
        ask = link.ask
        rest = ask.output_tokens - link.start
        prompt_tokens = ask.prompt_tokens + link.start
        if self.active[FaultKind.BUSY]:
            self._say_busy(link)
        elif self.active[FaultKind.DRAINING]:
            link.say(Said(Word.STATUS, FAULTY, is_leaving=True))
        elif self.active[FaultKind.BROKEN]:
            link.say(Said(Word.STATUS, FAULTY))
        elif ask.is_bad or not self.engine.fits(prompt_tokens, rest):
            link.say(Said(Word.STATUS, BAD))
        else:
            self._links[link.id] = link
            for choice in range(ask.sequences):
                self.engine.add(
                    Sequence(
                        id=f"{link.id}#{choice}",
                        prompt_tokens=prompt_tokens,
                        output_tokens=rest,
                        priority=ask.tier,
                    )
                )
            self._begin()

    def _say_busy(self, link: Link) -> None:
        """In a burst, streams beyond the first check get a 200 and then an event."""
        self._busy_answers += 1
        if link.ask.streams and self._busy_answers % 2:
            link.say(Said(Word.ERROR, BUSY))
            link.say(Said(Word.DONE))
        else:
            link.say(Said(Word.STATUS, BUSY))

    def _abandon(self, link: Link) -> None:
        if self.is_still:
            self._left.append(link)
        elif self._links.pop(link.id, None) is not None:
            self._abort(link)

    def _abort(self, link: Link) -> None:
        for choice in range(link.ask.sequences):
            self.engine.abort(f"{link.id}#{choice}")

    # --- what the engine does -------------------------------------------------------------------

    def _begin(self) -> None:
        if self.engine.is_stepping or self.is_still or self.is_down:
            return
        plan = self.engine.next_step()
        if plan is not None:
            self._clock.after(plan.duration_s * self.slowness, partial(self._complete, self.engine))

    def _complete(self, engine: Engine) -> None:
        if engine is not self.engine or self.is_down:
            return
        if self.is_still:
            self._is_due = True
            return
        made: defaultdict[str, list[TokenOut]] = defaultdict(list)
        for out in engine.complete_step():
            made[out.sequence_id.rpartition("#")[0]].append(out)
        for id, outs in made.items():
            link = self._links.get(id)
            if link is not None:
                self._tell(link, outs)
            elif outs[0].finished:
                self._foreign_open -= 1
        self._begin()

    def _tell(self, link: Link, outs: Iterable[TokenOut]) -> None:
        now, tokens = self._clock.now, []
        for id, n_tokens, finished in outs:
            choice = int(id.rpartition("#")[2])
            if n_tokens:
                tokens.append((choice, link.start + link.produced[choice]))
                link.produced[choice] += n_tokens
            link.open -= finished
        if link.last_made_at is not None:
            self._histograms.itl_s += now - link.last_made_at
            self._histograms.itls += 1
        link.last_made_at = now
        if link.ask.streams and tokens:
            link.say(Said(Word.TOKENS, tokens=tuple(tokens)))
        if not link.open:
            del self._links[link.id]
            self._end(link)

    def _end(self, link: Link) -> None:
        if link.ask.streams:
            link.say(Said(Word.DONE))
            return
        every = tuple(
            (choice, position)
            for choice, count in enumerate(link.produced)
            for position in range(count)
        )
        link.say(Said(Word.ANSWER, tokens=every))

    # --- what goes wrong ------------------------------------------------------------------------

    def suffer(self, fault: Fault) -> None:
        """The fault begins."""
        kind = fault.kind
        if kind is FaultKind.CRASH:
            self._break_all()
        elif kind is FaultKind.CORE_KILLED:
            self._say_dead()
        elif kind is FaultKind.CUT:
            self._cut()
        elif kind is FaultKind.FOREIGN:
            self._intrude(int(fault.factor))
        elif kind is FaultKind.STUCK:
            self._lose_track(int(fault.factor))
        elif kind is FaultKind.SLOW:
            self.slowness *= fault.factor
        elif kind is FaultKind.STALE and self._stale is None:
            self._stale = self._measured()
        self._change(kind, 1)

    def recover(self, fault: Fault) -> None:
        """The fault ends; a process that died or left is followed by a new one."""
        kind = fault.kind
        self._change(kind, -1)
        if kind in DOWN or kind is FaultKind.DRAINING:
            self._break_all()
            if not self.is_down:
                self.start()
        elif kind is FaultKind.SLOW:
            self.slowness /= fault.factor
        elif kind is FaultKind.STALE and not self.active[kind]:
            self._stale = None
        elif kind in STILL and not self.is_still:
            self._go_on()

    def _change(self, kind: FaultKind, by: int) -> None:
        active = self.active
        active[kind] += by
        self.is_down = any(active[each] for each in DOWN)
        self.is_still = any(active[each] for each in STILL)
        self.listens = not (self.is_down or active[FaultKind.REFUSED])

    def _break_all(self) -> None:
        for link in (*self._links.values(), *self._parked, *self._forgotten):
            link.break_off()
        self._links.clear()
        self._forgotten.clear()
        self._parked.clear()

    def _say_dead(self) -> None:
        for link in self._links.values():
            if link.ask.streams:
                link.say(Said(Word.ERROR, FAULTY))
                link.say(Said(Word.DONE))
            else:
                link.say(Said(Word.STATUS, FAULTY))
        self._links.clear()

    def _cut(self) -> None:
        for link in self._links.values():
            link.break_off()
            self._abort(link)
        for link in self._forgotten:
            link.break_off()
        self._links.clear()
        self._forgotten.clear()

    def _lose_track(self, streams: int) -> None:
        """Of those that it has begun, the first so many: it works at them no more."""
        begun = [link for link in self._links.values() if link.ask.streams and any(link.produced)]
        for link in begun[:streams]:
            del self._links[link.id]
            self._abort(link)
            self._forgotten.append(link)

    def _intrude(self, requests: int) -> None:
        if self.is_down:
            return
        for _ in range(requests):
            self._foreign += 1
            self._foreign_open += 1
            self.engine.add(
                Sequence(
                    id=f"foreign-{self._foreign}#0",
                    prompt_tokens=FOREIGN_PROMPT_TOKENS,
                    output_tokens=FOREIGN_OUTPUT_TOKENS,
                )
            )
        self._begin()

    def _go_on(self) -> None:
        """The core runs again, and finds what happened meanwhile."""
        if self.is_down:
            return
        left, self._left = self._left, []
        for link in left:
            self._abandon(link)
        parked, self._parked = self._parked, []
        for link in parked:
            if not link.is_left:
                self._read(link)
        if self._is_due:
            self._is_due = False
            self._complete(self.engine)
        else:
            self._begin()

    # --- what it tells of itself ----------------------------------------------------------------

    def report(self) -> ReplicaReport | None:
        """What its metrics say, true or not; None: there are none."""
        active = self.active
        if active[FaultKind.UNMEASURED] or not self.spec.is_measured:
            return None
        if self._stale is not None:
            return self._stale
        report = self._measured()
        if active[FaultKind.ZERO]:
            return replace(report, running=0, waiting=0, kv_use=0.0)
        if active[FaultKind.CROWDED]:
            return replace(report, running=self.spec.slots, waiting=CROWD, kv_use=0.9)
        return report

    def _measured(self) -> ReplicaReport:
        engine, counters = self.engine, self.engine.counters
        config, told = engine.config, self._histograms
        return ReplicaReport(
            running=engine.running,
            waiting=engine.waiting,
            kv_use=engine.kv_use,
            kv_capacity_tokens=config.kv_blocks * config.block_tokens,
            slots=self.spec.slots if self.spec.tells_slots else None,
            itl_sum_s=told.itl_s,
            itl_count=float(told.itls),
            prompt_tokens=float(counters.prompt_tokens),
            generation_tokens=float(counters.generation_tokens),
            iterations=float(counters.steps),
            preemptions=float(counters.preemptions),
        )
