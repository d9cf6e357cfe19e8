"""A running gateway and an operator who changes it over REST."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.gateway import Running, client, running_gateway

V1 = "/admin/v1"
CHAT: dict[str, object] = {"model": "raw", "messages": [{"role": "user", "content": "x"}]}
PATH = "/v1/chat/completions"


class WallClock:
    """Seconds since 1970, as the test says."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@dataclass(slots=True)
class Operated:
    """A gateway, its clients' way in, and the operators'."""

    running: Running
    http: httpx.AsyncClient
    admin: httpx.AsyncClient

    @property
    def office(self) -> Any:
        """Where changes are made."""
        return self.running.gateway.office

    async def call(self, method: str, path: str, status: int, **options: Any) -> Any:
        """An operator asks, and gets this status; what was answered, as it was meant."""
        answer = await self.admin.request(method, V1 + path, **options)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def policy(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The policy in force, and the header that says so."""
        answer = await self.admin.get(f"{V1}/policy")
        return answer.json(), {"if-match": answer.headers["etag"]}

    async def put_policy(self, **changes: Any) -> Any:
        """Change these sections."""
        document, match = await self.policy()
        return await self.call("PUT", "/policy", 200, json=document | changes, headers=match)

    async def made_key(self, **fields: Any) -> Any:
        """A fresh key of the tenant `acme`, which is made where it is not there."""
        if (await self.admin.get(f"{V1}/tenants/acme")).status_code == 404:
            await self.call("POST", "/tenants", 201, json={"name": "acme"})
        return await self.call("POST", "/keys", 201, json={"tenant": "acme", **fields})

    async def status_with(self, key: str | None) -> int:
        """What a client with this key gets; 404: it is let in, and the model does not exist."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        answer = await self.http.post(PATH, json={**CHAT, "model": "none"}, headers=headers)
        return answer.status_code


@asynccontextmanager
async def operated(
    *replicas: str | Mapping[str, object], **options: Any
) -> AsyncIterator[Operated]:
    """A gateway before `replicas`; options as for `running_gateway`."""
    async with (
        running_gateway(*replicas, **options) as running,
        client(running) as http,
        client(running) as admin,
    ):
        yield Operated(running, http, admin)
