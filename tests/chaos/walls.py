"""Inside a network of its own: packets to one engine are dropped, or refused, and then let through.

`python -m tests.chaos.walls` does it and says how it went; it needs a network namespace around it,
since it changes the firewall.
"""

import asyncio
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from tests.chaos.clients import Seen, ask
from tests.chaos.fleet import Local, Replica, running_fleet
from tests.chaos.judge import is_served
from tests.chaos.schedule import Client, Engine
from tests.support.gateway import Running, eventually, running_gateway
from tests.support.house import AheadClock

ENGINES = (Engine(is_process=False, has_line=False, slots=4, speed=1.0),) * 2
CLIENT = Client(
    at_s=0.0,
    manner="reads",
    streams=True,
    tells_usage=True,
    is_chat=True,
    tier="standard",
    user="u",
    words="Why?",
    max_tokens=60,
    leaves_after_s=0.0,
)
RULES = ("DROP", "REJECT --reject-with tcp-reset", "REJECT --reject-with icmp-port-unreachable")
AHEAD_S, AHEAD_TIMES, AHEAD_EVERY_S = 61.0, 6, 2.0
BACK_S = 30.0
OUT_S = 30.0


def firewall(*words: str) -> None:
    """One command of it."""
    subprocess.run(["iptables", *words], check=True)


async def behind(rule: str) -> str:
    """Cut one of two engines off with `rule`, in the middle of streams, and let it back."""
    clock = AheadClock()
    async with running_fleet(ENGINES) as fleet:
        urls = [each.url for each in fleet]
        async with running_gateway(*urls, clock=clock) as running:
            port = int(running.url.rpartition(":")[2])
            asking = [
                asyncio.ensure_future(ask(port, replace(CLIENT, user=f"u{n}"), asyncio.Event()))
                for n in range(8)
            ]
            engine = fleet[0].engine
            assert isinstance(engine, Local)
            await eventually(lambda: all(_works(each) for each in fleet))
            rules = [
                [side, "-p", "tcp", port_flag, str(engine.port), "-j", *rule.split()]
                for side, port_flag in (("INPUT", "--dport"), ("INPUT", "--sport"))
            ]
            for each in rules:
                firewall("-I", *each)
            seens = await _with_time_passing(clock, asking)
            lost = running.gateway.scheduler.replicas[fleet[0].name]
            await eventually(lambda: not lost.is_usable, OUT_S)
            during = await asyncio.gather(*(ask(port, CLIENT, asyncio.Event()) for _ in range(4)))
            for each in rules:
                firewall("-D", *each)
            await eventually(lambda: lost.is_usable, BACK_S)
            after = await asyncio.gather(*(ask(port, CLIENT, asyncio.Event()) for _ in range(8)))
            await eventually(lambda: _is_free(running), 10.0)
    served = [sum(map(is_served, some)) for some in (seens, during, after)]
    assert len(seens) == 8, f"{rule}: {8 - len(seens)} of 8 hang"
    ended = sum(seen.end == "whole" for seen in seens)
    assert ended == len(seens), f"{rule}: {[(each.end, each.raw[-100:]) for each in seens]}"
    assert served[0] >= 4, f"{rule}: only {served[0]} of 8 served, 4 were elsewhere"
    assert served[1:] == [4, 8], f"{rule}: {served}"
    return f"{rule}: {served[0]} of 8 served while it began, all ended, all before and after"


def _works(replica: Replica) -> bool:
    assert isinstance(replica.engine, Local)
    assert replica.engine.emulator is not None
    return bool(replica.engine.emulator.engine.counters.generation_tokens)


async def _with_time_passing(
    clock: AheadClock, asking: "Sequence[asyncio.Future[Seen]]"
) -> list[Seen]:
    hanging: set[asyncio.Future[Seen]] = set(asking)
    for _ in range(AHEAD_TIMES):
        _, hanging = await asyncio.wait(asking, timeout=AHEAD_EVERY_S)
        if not hanging:
            break
        clock.lead_s += AHEAD_S
    for each in hanging:
        each.cancel()
    return [each.result() for each in asking if each not in hanging]


def _is_free(running: Running) -> bool:
    ledgers = [each.ledger for each in running.gateway.scheduler.replicas.values()]
    return not running.in_flight and not any(each.sequences for each in ledgers)


async def all_rules() -> None:
    """One after the other."""
    for rule in RULES:
        told = await behind(rule)
        print(told, flush=True)  # noqa: T201 - its result


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    asyncio.run(all_rules())
