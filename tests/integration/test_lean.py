"""What a gateway at rest has loaded: nothing of what it was not asked for."""

import asyncio
import sys

LOADED = """
import sys
import uvicorn
from gateway.__main__ import main
UNASKED = ("rich", "gateway.top", "gateway.seating", "hiredis", "gateway.batch", "fsspec",
           "opentelemetry.sdk", "gateway.cli", "gateway.bench", "gateway.sim", "gateway.emulator",
           "pydantic.v1")
def look(*_):
    import gateway.workers
    names = [name for name, module in sys.modules.items() if module is not None]
    print([name for name in names for each in UNASKED if f"{name}.".startswith(f"{each}.")])
uvicorn.Server.run = look
sys.argv = ["fairgate", "serve", "--replica", "http://127.0.0.1:9"]
main()
"""
"""Looked at where all is made and wired, and it would begin to listen."""


async def test_a_gateway_loads_nothing_that_it_was_not_asked_for() -> None:
    """Each of them is megabytes in every worker, of a gateway that has none of it configured."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOADED, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert said.decode().splitlines()[-1] == "[]"
