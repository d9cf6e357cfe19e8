"""vLLM's sleep mode: an engine gives its memory back, and takes it again.

Its routes exist where vLLM was started with VLLM_SERVER_DEV_MODE=1; it gives memory back with
`--enable-sleep-mode` alone. An engine that sleeps leaves requests hanging, and must get none: who
may sleep is decided elsewhere.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import httpx

from gateway.upstream.replicas import ReplicaAddress
from gateway.upstream.unanswered import UNANSWERED

LEVEL: Final = 1
"""Weights go to the machine's memory, from where they are back in seconds; 2 would drop them."""
ASK_S: Final = 2.0
SLEEP_S: Final = 60.0
WAKE_S: Final = 120.0
LOOK_EVERY_S: Final = 0.5


class EngineSleep:
    """Puts engines to sleep and wakes them."""

    def __init__(
        self,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._pause = pause

    async def is_asleep(self, address: ReplicaAddress) -> bool | None:
        """Whether it sleeps; None: it has no sleep mode, or does not answer."""
        async with await self._client(address) as http:
            return await _is_asleep(http)

    async def put_to_sleep(self, address: ReplicaAddress) -> bool:
        """Whether it sleeps now."""
        async with await self._client(address) as http:
            if await _is_asleep(http):
                return True
            status = await _asked(http, "POST", f"/sleep?level={LEVEL}", SLEEP_S)
            return status is not None and status.status_code == 200

    async def wake(self, address: ReplicaAddress) -> bool:
        """Whether it is awake: it was, or is again. Within `WAKE_S`."""
        async with await self._client(address) as http:
            if not await _is_asleep(http):
                return True
            await _asked(http, "POST", "/wake_up", WAKE_S)
            try:
                async with asyncio.timeout(WAKE_S):
                    while await _is_asleep(http) is not False:
                        await self._pause(LOOK_EVERY_S)
            except TimeoutError:
                return False
            return True

    async def _client(self, address: ReplicaAddress) -> httpx.AsyncClient:
        trusted = None
        if address.url.startswith("https:"):
            # To read the certificates of a system would stop the loop.
            trusted = await asyncio.to_thread(ssl.create_default_context, cafile=address.ca_file)
        headers = {"authorization": f"Bearer {address.api_key}"} if address.api_key else {}
        return httpx.AsyncClient(
            base_url=address.url, headers=headers, trust_env=False, verify=trusted or False,
            transport=self._transport,
        )  # fmt: skip


async def _is_asleep(http: httpx.AsyncClient) -> bool | None:
    answer = await _asked(http, "GET", "/is_sleeping", ASK_S)
    if answer is None or answer.status_code != 200:
        return None
    try:
        told = answer.json()["is_sleeping"]
    except (ValueError, KeyError, TypeError):
        return None
    return told if isinstance(told, bool) else None


async def _asked(
    http: httpx.AsyncClient, method: str, path: str, within_s: float
) -> httpx.Response | None:
    try:
        return await http.request(method, path, timeout=within_s)
    except UNANSWERED:
        return None
