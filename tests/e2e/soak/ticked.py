"""The gateway's command with a ticker on its event loop, which tells how long the loop was held.

Run as `python -m tests.e2e.soak.ticked --config FILE --ticks PORT`: who connects to PORT is told
the longest block since the last one asked, and the count begins anew.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path

import uvloop

from gateway.app import Gateway
from gateway.runtime.collector import calm_collector
from gateway.server import GatewayServer, server_config
from gateway.settings import load_settings

TICK_S = 0.001


class Ticker:
    """The longest time between two turns that it asked for, less the time it asked for."""

    def __init__(self) -> None:
        self._wall_s = 0.0
        self._cpu_s = 0.0

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            wall_at, cpu_at = time.monotonic(), time.thread_time()
            await asyncio.sleep(TICK_S)
            self._wall_s = max(self._wall_s, time.monotonic() - wall_at - TICK_S)
            self._cpu_s = max(self._cpu_s, time.thread_time() - cpu_at)

    async def tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell one asker."""
        told = {"wall_s": self._wall_s, "cpu_s": self._cpu_s}
        self._wall_s = self._cpu_s = 0.0
        writer.write(json.dumps(told).encode())
        writer.close()


async def serve(config: Path, port: int) -> None:
    """Serve until a signal ends it."""
    settings = load_settings(config=config, environ={}, overrides={})
    gateway = Gateway(settings)
    listen = settings.listen
    server = GatewayServer(server_config(gateway, host=listen.host, port=listen.port), gateway)
    ticker = Ticker()
    ticking = asyncio.ensure_future(ticker.run())
    async with await asyncio.start_server(ticker.tell, "127.0.0.1", port):
        await server.serve()
    ticking.cancel()


def main() -> None:
    """Run the gateway as its command does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--ticks", type=int, required=True)
    chosen = parser.parse_args()
    calm_collector()
    uvloop.run(serve(chosen.config, chosen.ticks))


if __name__ == "__main__":
    main()
