"""One schedule carried out on sockets, from the first connection to the last look at the books."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from gateway.core import invariants
from gateway.core.messages import DrainAsked
from gateway.telemetry.record import SettledRequest
from tests.chaos.books import Books
from tests.chaos.clients import Seen, ask
from tests.chaos.fleet import Process, Replica, running_fleet
from tests.chaos.judge import Oracle, faults_of, is_served
from tests.chaos.schedule import Client, Fault, Schedule
from tests.support.chaos_proxy import NONE
from tests.support.gateway import Running, eventually, running_gateway
from tests.support.house import AheadClock, settled_by

SETTLE_S = 2.0
"""After everything is well again, answers get so long to come by themselves."""
AHEAD_S = 61.0
"""Then the gateway's clock is put forward, so that what hangs has hung for longer than any bound of
it; more than once, since the first time its last report of progress may still be on the way."""
AHEAD_TIMES, AHEAD_EVERY_S = 4, 2.5
FREE_S = 8.0
BACK_S = 15.0
"""Every replica is used again after so long."""


@dataclass(slots=True)
class Verdict:
    """What was wrong in one trial, and figures for who looks on."""

    schedule: Schedule
    wrong: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        again = f'make chaos ARGS="--seed {self.schedule.seed}"'
        wrong = "\n".join(f"  - {each}" for each in self.wrong)
        return f"{self.schedule}\nwrong:\n{wrong}\nagain: {again}"


@dataclass(slots=True)
class Stage:
    """Everything that one trial needs."""

    fleet: list[Replica]
    running: Running
    clock: AheadClock
    books: Books
    records: list[SettledRequest]

    @property
    def port(self) -> int:
        """The gateway's."""
        return int(self.running.url.rpartition(":")[2])

    def usable(self) -> int:
        """Replicas that would be granted now."""
        return sum(each.is_usable for each in self.running.gateway.scheduler.replicas.values())


async def carried_out(plan: Schedule, oracle: Oracle) -> Verdict:
    """Do it, and judge."""
    verdict = Verdict(plan)
    await oracle.learn([*plan.clients, *_next()])
    async with _stage(plan) as stage:
        seens = await _run(stage, plan)
        await _judge(stage, verdict, seens, oracle)
    return verdict


@asynccontextmanager
async def _stage(plan: Schedule) -> AsyncIterator[Stage]:
    clock = AheadClock()
    async with running_fleet(plan.engines) as fleet:
        urls = [each.url for each in fleet]
        async with running_gateway(*urls, clock=clock, keepalive_after_s=1.0) as running:
            books = Books(running.gateway.scheduler)
            running.gateway.dispatcher.scheduler = books  # type: ignore[assignment]  # all that is used of it
            try:
                yield Stage(fleet, running, clock, books, settled_by(running))
            finally:
                for replica in fleet:
                    await replica.heal()


async def _run(stage: Stage, plan: Schedule) -> list[Seen]:
    """All clients and all faults; returns when the last client has its end."""
    over = asyncio.Event()
    asking = [asyncio.ensure_future(_ask(stage, each, over)) for each in plan.clients]
    patient = [
        task
        for task, client in zip(asking, plan.clients, strict=True)
        if client.manner in ("reads", "slow")
    ]
    async with asyncio.TaskGroup() as striking:
        for fault in plan.faults:
            striking.create_task(_strike(stage, fault))
        striking.create_task(asyncio.sleep(max(each.at_s for each in plan.clients)))
    for replica in stage.fleet:
        await replica.heal()
    _, hanging = await asyncio.wait(patient, timeout=SETTLE_S)
    for _ in range(AHEAD_TIMES):
        if hanging:
            stage.clock.lead_s += AHEAD_S
            _, hanging = await asyncio.wait(patient, timeout=AHEAD_EVERY_S)
    over.set()
    return await asyncio.gather(*asking)


async def _ask(stage: Stage, client: Client, over: asyncio.Event) -> Seen:
    await asyncio.sleep(client.at_s)
    return await ask(stage.port, client, over)


async def _strike(stage: Stage, fault: Fault) -> None:
    replica = stage.fleet[fault.engine]
    await asyncio.sleep(fault.at_s)
    await _begin(stage, replica, fault)
    await asyncio.sleep(fault.lasts_s)
    await _end(stage, replica, fault)


async def _begin(stage: Stage, replica: Replica, fault: Fault) -> None:
    match fault.act:
        case "inject":
            await replica.engine.inject(fault.what)
        case "kill":
            await replica.engine.kill()
        case "drain":
            stage.running.gateway.dispatcher.tell(DrainAsked(replica.name))
        case "signal":
            assert isinstance(replica.engine, Process)
            replica.engine.signal(fault.what)
        case "line":
            assert replica.line is not None
            assert fault.trouble is not None
            await replica.line.set(fault.trouble)
        case "reset":
            assert replica.line is not None
            replica.line.reset_all()


async def _end(stage: Stage, replica: Replica, fault: Fault) -> None:
    match fault.act:
        case "inject":
            await replica.engine.clear(fault.what)
        case "kill":
            await replica.engine.start()
        case "drain":
            stage.running.gateway.dispatcher.tell(DrainAsked(replica.name, draining=False))
        case "signal":
            assert isinstance(replica.engine, Process)
            if fault.what == "SIGSTOP":
                replica.engine.signal("SIGCONT")
            else:
                await replica.heal()
        case "line":
            assert replica.line is not None
            await replica.line.set(NONE)
        case "reset":
            pass


# --- what must hold ---------------------------------------------------------------------------


async def _judge(stage: Stage, verdict: Verdict, seens: list[Seen], oracle: Oracle) -> None:
    wrong = verdict.wrong
    for seen in seens:
        hung = seen.end == "left" and seen.client.manner in ("reads", "slow")
        if hung:
            wrong.append(f"no end came to {seen.client}, only {seen.raw[-200:]!r}")
        wrong += [f"{fault}; {seen.client}" for fault in faults_of(seen, oracle)]
        verdict.ends[
            "served" if is_served(seen) else f"{seen.end} {seen.status or ''}".strip()
        ] += 1
    await _judge_books(stage, wrong)
    await _judge_next(stage, wrong, oracle)
    await _judge_books(stage, wrong)
    _judge_records(stage, wrong, seens)


async def _judge_books(stage: Stage, wrong: list[str]) -> None:
    """Nothing is held anywhere, and all that came has gone."""
    gateway, scheduler = stage.running.gateway, stage.running.gateway.scheduler
    try:
        await eventually(lambda: not (stage.running.in_flight or gateway.relay.open), FREE_S)
    except TimeoutError:
        wrong.append(f"still waiting {list(scheduler.waiting)}, granted {list(scheduler.granted)}")
        wrong.append(f"still open {[each.request_id for each in gateway.relay.open]}")
    for number, replica in enumerate(stage.fleet):
        try:
            await replica.idle(FREE_S)
        except TimeoutError:
            wrong.append(f"engine {number} still works on {await replica.engine.busy()}")
    for name, known in scheduler.replicas.items():
        ledger = known.ledger
        if ledger.sequences or ledger.kv_tokens or ledger.grants:
            wrong.append(f"the ledger of {name}: {ledger.sequences}, {ledger.kv_tokens}")
    if gateway.dispatcher._waiters:
        wrong.append(f"still waited for: {list(gateway.dispatcher._waiters)}")
    try:
        invariants.check(scheduler)
    except AssertionError as problem:
        wrong.append(f"the scheduler's books: {problem}")
    wrong += stage.books.balance()


async def _judge_next(stage: Stage, wrong: list[str], oracle: Oracle) -> None:
    """Replicas come back, and the next requests are served right."""
    try:
        await eventually(lambda: stage.usable() == len(stage.fleet), BACK_S)
    except TimeoutError:
        wrong.append(f"only {stage.usable()} of {len(stage.fleet)} replicas came back")
    for client in _next():
        seen = await asyncio.wait_for(ask(stage.port, client, asyncio.Event()), BACK_S)
        if not is_served(seen):
            wrong.append(f"the next request got {seen.status} {seen.body[:200]!r}")
        wrong += [f"the next request: {fault}" for fault in faults_of(seen, oracle)]


def _judge_records(stage: Stage, wrong: list[str], seens: list[Seen]) -> None:
    """What was settled is what clients saw, each once."""
    by_id = Counter(each.request_id for each in stage.records)
    wrong += [f"{each} was settled {n} times" for each, n in by_id.items() if n > 1]
    outcomes = {each.request_id: each.outcome for each in stage.records}
    for seen in seens:
        if seen.end != "whole" or seen.request_id is None:
            continue
        outcome = outcomes.get(seen.request_id, "never settled")
        if (outcome == "done") != is_served(seen):
            wrong.append(f"settled as {outcome}, but {seen.status}: {seen.client}")
    if len(stage.records) > len(seens) + len(_next()):
        wrong.append(f"{len(stage.records)} settled of {len(seens)} asked for")


def _next() -> tuple[Client, ...]:
    return tuple(
        Client(
            at_s=0.0,
            manner="reads",
            streams=streams,
            tells_usage=streams,
            is_chat=True,
            tier="standard",
            user="next",
            words="And now?",
            max_tokens=12,
            leaves_after_s=0.0,
        )
        for streams in (True, False)
    )


@contextmanager
def complaints() -> Iterator[list[str]]:
    """What is logged as an error, and what nobody awaited, is wrong, too."""
    wrong: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = logging.Formatter().format(record)
            wrong.append(f"logged: {text[-1500:]}")

    listening = Listening(logging.ERROR)
    logging.getLogger().addHandler(listening)
    try:
        yield wrong
    finally:
        logging.getLogger().removeHandler(listening)
