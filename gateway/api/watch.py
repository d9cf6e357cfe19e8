"""One walk over all open exchanges, once a second, instead of a timer for each.

It reports progress to the scheduler, cuts off clients that read nothing, and gives up engines
that do nothing any more, for anybody or for one request.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.api.exchange import Exchange
from gateway.api.relay import Relay
from gateway.core.messages import Fault, Progressed
from gateway.runtime.stalls import STALL_S, Silent

WALK_EVERY_S = 1.0
LATE_S = 5.0
"""More than this between two walks, and it was this process that did nothing."""


class IsStalled(Protocol):
    """Knows whether an engine still does anything for a request."""

    def __call__(
        self, request_id: str, *, silent_since: float, has_begun: bool, now: float
    ) -> bool:
        """See `runtime.stalls.is_stalled`."""


Stuck = Callable[[Iterable[Silent], float], list[str]]
"""As `runtime.stalls.stuck` of one scheduler."""


async def watch(
    relay: Relay,
    *,
    tell: Callable[[Progressed], None],
    clock: Callable[[], float],
    client_stall_s: Callable[[], float],
    is_stalled: IsStalled,
    stuck: Stuck,
) -> None:
    """Walk until cancelled.

    A walk that is late gives up nobody: a process that stood still looks at its timers first, and
    only then at what came meanwhile.
    """
    walked_at = clock()
    while True:
        await asyncio.sleep(WALK_EVERY_S)
        for progressed in progress(relay):
            tell(progressed)
        now = clock()
        is_late, walked_at = now - walked_at > LATE_S, now
        if is_late:
            continue
        cut_stalled(relay, now, client_stall_s())
        give_up_stalled(relay, is_stalled, now)
        give_up_stuck(relay, stuck, now)


def progress(relay: Relay) -> list[Progressed]:
    """Output so far of every open stream, one event for each replica."""
    produced: dict[str, dict[str, int]] = defaultdict(dict)
    heard: dict[str, float] = {}
    held: dict[str, set[str]] = defaultdict(set)
    for exchange in relay.open:
        if exchange.output_tokens:
            replica = exchange.replica
            produced[replica][exchange.request_id] = exchange.output_tokens
            if exchange.writing_since is not None:
                held[replica].add(exchange.request_id)
            at = exchange.heard_at
            if at is not None and at > heard.get(replica, at - 1.0):
                heard[replica] = at
    return [
        Progressed(replica, tokens, heard.get(replica), frozenset(held.get(replica, ())))
        for replica, tokens in produced.items()
    ]


def cut_stalled(relay: Relay, now: float, client_stall_s: float) -> None:
    """End exchanges whose client has taken nothing for `client_stall_s`."""
    for exchange, task in list(relay.open.items()):
        exchange.look_at_client(now)
        since = exchange.writing_since
        if task is not None and since is not None and since < now - client_stall_s:
            exchange.cut_off(task)


def give_up_stalled(relay: Relay, is_stalled: IsStalled, now: float) -> None:
    """End exchanges whose engine is silent and makes no progress with anything."""
    for exchange, task in list(relay.open.items()):
        since = exchange.silent_since
        if task is None or since is None:
            continue
        if is_stalled(
            exchange.request_id, silent_since=since, has_begun=exchange.has_begun, now=now
        ):
            exchange.give_up(task)


def give_up_stuck(relay: Relay, stuck: Stuck, now: float) -> None:
    """End exchanges for which an engine does nothing, though it goes on with others."""
    silent: dict[str, Exchange] = {}
    told: list[Silent] = []
    for exchange, task in relay.open.items():
        since = exchange.silent_since
        if task is not None and since is not None and now - since >= STALL_S:
            silent[exchange.request_id] = exchange
            told.append(Silent(exchange.request_id, since, exchange.has_begun))
    for request_id in stuck(told, now) if told else ():
        exchange = silent[request_id]
        task = relay.open[exchange]
        assert task is not None
        exchange.give_up(task, Fault.STUCK)
