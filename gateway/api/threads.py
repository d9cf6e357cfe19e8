"""Work that would stop the loop, done in threads; where there is none left, the client is told so.

What the work itself raises passes through.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - asyncio loads it late, maybe without files left
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

from gateway.errors import OverloadedError

EXHAUSTED_RETRY_S = 1.0
"""When a client should come back that found the gateway without threads or files."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def in_thread(
    work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """What `work` returns. Raises OverloadedError where no thread can be had."""
    return await in_thread_of(None, partial(work, *args, **kwargs))


async def in_thread_of(threads: Executor | None, work: Callable[[], Result]) -> Result:
    """As `in_thread`, on threads apart: what may hang holds up nothing else."""
    loop = asyncio.get_running_loop()
    try:
        done = loop.run_in_executor(threads, work)
    except (OSError, RuntimeError) as error:
        text = "The gateway has no threads left."
        raise OverloadedError(text, retry_after_s=EXHAUSTED_RETRY_S) from error
    return await done
