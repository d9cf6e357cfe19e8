"""One walk over all open exchanges, once a second, instead of a timer for each.

It reports progress to the scheduler and cuts off clients that read nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from gateway.api.relay import Relay
from gateway.core.messages import Progressed

WALK_EVERY_S = 1.0


async def watch(
    relay: Relay,
    *,
    tell: Callable[[Progressed], None],
    clock: Callable[[], float],
    client_stall_s: float,
) -> None:
    """Walk until cancelled."""
    while True:
        await asyncio.sleep(WALK_EVERY_S)
        for progressed in progress(relay):
            tell(progressed)
        cut_stalled(relay, clock() - client_stall_s)


def progress(relay: Relay) -> list[Progressed]:
    """Output so far of every open stream, one event for each replica."""
    produced: dict[str, dict[str, int]] = defaultdict(dict)
    for exchange in relay.open:
        if exchange.output_tokens:
            produced[exchange.replica][exchange.request_id] = exchange.output_tokens
    return [Progressed(replica, tokens) for replica, tokens in produced.items()]


def cut_stalled(relay: Relay, horizon: float) -> None:
    """End exchanges whose client has taken nothing since `horizon`."""
    for exchange, task in list(relay.open.items()):
        since = exchange.writing_since
        if task is not None and since is not None and since < horizon:
            task.cancel()
