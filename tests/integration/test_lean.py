"""What a gateway at rest has loaded: nothing of what it was not asked for."""

import asyncio
import sys

LOADED = """
import sys
from gateway.cli import _spare_httpx_its_command_line as spare
spare()
import gateway.server, gateway.app, gateway.workers
UNASKED = ("rich", "gateway.top", "gateway.seating", "hiredis", "gateway.batch", "fsspec",
           "opentelemetry.sdk", "gateway.bench", "gateway.sim", "gateway.emulator")
print([name for name in sys.modules for each in UNASKED if f"{name}.".startswith(f"{each}.")])
"""


async def test_a_gateway_loads_nothing_that_it_was_not_asked_for() -> None:
    """Each of them is megabytes in every worker, of a gateway that has none of it configured."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOADED, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert said.decode().strip() == "[]"
