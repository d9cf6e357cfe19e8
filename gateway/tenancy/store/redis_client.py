"""Clients of Redis: the one place where they are made, so that a cancellation of their user counts.

redis-py sends each command within `asyncio.wait_for` where sockets have a timeout. Before Python
3.12 that returns what it has, if it has it by then, and forgets that its task was cancelled: the
loop that was to end went on, and a budget that was over did not end the call.
"""

import asyncio
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry


def client(
    url: str, *, connections_max: int, wait_s: float, socket_s: float, retry: Retry | None = None
) -> Redis:
    """A client with a pool of its own. Raises ValueError: it is no URL of a Redis.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        connections_max: of the pool.
        wait_s: for one of them, and for connecting.
        socket_s: for each answer, whatever the budget of the call is.
        retry: of commands; None: redis-py's own.
    """
    words: dict[str, Any] = {} if retry is None else {"retry": retry}
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections_max,
        timeout=wait_s,
        socket_timeout=socket_s,
        socket_connect_timeout=wait_s,
        **words,
    )
    pool.connection_class = _heedful(pool.connection_class)
    return Redis.from_pool(pool)


def _heedful(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Connections of that kind that lose no cancellation."""

    class Heedful(kind):  # type: ignore[valid-type,misc]  # TCP, TLS or a Unix socket
        """See above."""

        async def send_packed_command(
            self, command: Any, check_health: bool = True
        ) -> None:  # as redis-py has it
            """Send; what was cancelled meanwhile ends here."""
            task = asyncio.current_task()
            before = 0 if task is None else task.cancelling()
            await super().send_packed_command(command, check_health=check_health)
            if task is not None and task.cancelling() > before:
                # Its answer would be taken for that of the next command.
                await self.disconnect(nowait=True)
                raise asyncio.CancelledError

    return Heedful
