"""The routes beside inference: health, version, load, metrics, and the faults to be switched on.

Nothing here counts as a request in flight, and only metrics can be made to fail.
"""

import time
from collections.abc import Awaitable, Callable

import orjson

from gateway.emulator import bodies
from gateway.emulator.calls import Card
from gateway.emulator.driver import Driver
from gateway.emulator.exchange import Exchange
from gateway.emulator.exposition import CONTENT_TYPE
from gateway.emulator.faults import FaultKind, Faults
from gateway.emulator.meters import Meters
from gateway.emulator.refusals import bad_request, crashed

Route = Callable[[Exchange], Awaitable[None]]
Routes = dict[str, dict[str, Route]]
"""What answers, by path and method."""


class Operations:
    """What an operator or a probe asks one emulator."""

    def __init__(
        self,
        card: Card,
        *,
        driver: Driver,
        meters: Meters,
        faults: Faults,
        can_sleep: bool = False,
    ) -> None:
        """`can_sleep`: with the routes of vLLM's sleep mode."""
        self.in_flight = 0
        """Requests for inference that are not yet answered."""
        self._card = card
        self._driver = driver
        self._meters = meters
        self._faults = faults
        self._can_sleep = can_sleep
        self._created = time.time()
        self._stale_metrics: bytes | None = None

    def routes(self) -> Routes:
        """All of them."""
        sleeping: Routes = {
            "/sleep": {"POST": self._sleep},
            "/wake_up": {"POST": self._wake_up},
            "/is_sleeping": {"GET": self._is_sleeping},
        }
        return (sleeping if self._can_sleep else {}) | {
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
            "/_fault": {"GET": self._list_faults, "POST": self._set_faults},
        }

    async def _models(self, exchange: Exchange) -> None:
        await exchange.answer(200, bodies.models_body(self._card, int(self._created)))

    async def _health(self, exchange: Exchange) -> None:
        is_active = self._faults.is_active
        is_well = not (is_active(FaultKind.UNHEALTHY) or is_active(FaultKind.CORE_DEAD))
        await exchange.answer(200 if is_well else 503, b"")

    async def _version(self, exchange: Exchange) -> None:
        await exchange.answer(200, b'{"version":"0.32.0"}')

    async def _sleep(self, exchange: Exchange) -> None:
        self._faults.inject(FaultKind.ASLEEP)
        await exchange.answer(200, b"")

    async def _wake_up(self, exchange: Exchange) -> None:
        self._faults.clear(FaultKind.ASLEEP)
        await exchange.answer(200, b"")

    async def _is_sleeping(self, exchange: Exchange) -> None:
        is_asleep = self._faults.is_active(FaultKind.ASLEEP)
        await exchange.answer(200, orjson.dumps({"is_sleeping": is_asleep}))

    async def _load(self, exchange: Exchange) -> None:
        await exchange.answer(200, b'{"server_load":%d}' % self.in_flight)

    async def _metrics(self, exchange: Exchange) -> None:
        slow = self._faults.get(FaultKind.SLOW_METRICS)
        if slow is not None:
            await exchange.mailbox.wait_gone(slow.value)
        if self._faults.strike(FaultKind.NO_METRICS):
            raise crashed()
        await exchange.answer(200, self._metrics_text(), content_type=CONTENT_TYPE.encode())

    def _metrics_text(self) -> bytes:
        if not self._faults.is_active(FaultKind.STALE_GAUGES):
            self._stale_metrics = None
        if self._stale_metrics is not None:
            return self._stale_metrics
        text = self._meters.text(
            self._driver.engine,
            self._card.models[0],
            self._created,
            zero_gauges=self._faults.is_active(FaultKind.ZERO_GAUGES),
        )
        if self._faults.is_active(FaultKind.STALE_GAUGES):
            self._stale_metrics = text
        return text

    async def _list_faults(self, exchange: Exchange) -> None:
        active = [str(fault) for fault in self._faults.active()]
        await exchange.answer(200, orjson.dumps({"active": active}))

    async def _set_faults(self, exchange: Exchange) -> None:
        """`{"clear": ["freeze"] or true, "inject": ["die-midstream:5"]}`, both optional."""
        try:
            asked = orjson.loads(await exchange.body())
            clear = asked.get("clear", [])
            inject = asked.get("inject", [])
            if clear:
                self._faults.clear(*([] if clear is True else clear))
            self._faults.inject(*inject)
        except (ValueError, AttributeError, TypeError) as error:
            raise bad_request(str(error)) from None
        await self._list_faults(exchange)
