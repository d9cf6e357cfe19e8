"""How the command line talks to a gateway as a user with batches: `/v1/files` and `/v1/batches`.

It knows addresses, keys and bytes; what a batch is like, and how it is shown, is not known here.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import httpx

from gateway.remote import PAGES_MAX, RemoteError, complaint

KEY_VARIABLE = "FAIRGATE_API_KEY"
TIMEOUT_S = 60.0
PAGE = 100
CHUNK_BYTES = 1 << 20


class RemoteBatches:
    """One gateway, as a user with an API key reaches it."""

    def __init__(
        self, url: str, key: str | None, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._url = url
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=TIMEOUT_S, transport=transport, trust_env=False
        )

    def __enter__(self) -> "RemoteBatches":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def upload(self, path: Path, sent: Callable[[int], object]) -> str:
        """The id of the file that was made of `path`; `sent` hears of bytes. Raises RemoteError."""
        with path.open("rb") as file:
            told = cast(IO[bytes], _Told(file, sent))
            answer = self._ask(
                "POST",
                "/v1/files",
                data={"purpose": "batch"},
                files={"file": (path.name, told, "application/jsonl")},
            )
        return str(answer["id"])

    def create(
        self, file_id: str, *, endpoint: str, window: str, tier: str | None
    ) -> dict[str, Any]:
        """A new batch. Raises RemoteError."""
        wish = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        headers = {} if tier is None else {"x-fairgate-tier": tier}
        return self._ask("POST", "/v1/batches", json=wish, headers=headers)

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Raises RemoteError."""
        return self._ask("GET", f"/v1/batches/{batch_id}")

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """Raises RemoteError."""
        return self._ask("POST", f"/v1/batches/{batch_id}/cancel")

    def all(self) -> Iterator[dict[str, Any]]:
        """Every batch, newest first. Raises RemoteError."""
        after: str | None = None
        for _ in range(PAGES_MAX):
            query = {"limit": str(PAGE)} if after is None else {"limit": str(PAGE), "after": after}
            found = self._ask("GET", "/v1/batches", params=query)
            yield from found["data"]
            after = found["last_id"]
            if not found["has_more"]:
                return

    def download(self, file_id: str, path: Path) -> None:
        """The content of a file into `path`. Raises RemoteError."""
        try:
            with self._http.stream("GET", f"/v1/files/{file_id}/content") as reply:
                if not reply.is_success:
                    reply.read()
                    raise RemoteError(complaint(reply))
                with path.open("wb") as file:
                    for data in reply.iter_bytes(CHUNK_BYTES):
                        file.write(data)
        except httpx.HTTPError as error:
            raise RemoteError(f"{self._url} does not answer: {error}") from None

    def _ask(
        self, method: str, route: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> dict[str, Any]:
        try:
            reply = self._http.request(method, route, headers=dict(headers or {}), **options)
        except httpx.InvalidURL as error:
            raise RemoteError(f"{self._url}: {error}") from None
        except httpx.HTTPError as error:
            raise RemoteError(f"{self._url} does not answer: {error}") from None
        if not reply.is_success:
            raise RemoteError(complaint(reply))
        found = reply.json()
        assert isinstance(found, dict)
        return found


class _Told:
    """A file that tells how much of it was read."""

    def __init__(self, file: IO[bytes], sent: Callable[[int], object]) -> None:
        self._file = file
        self._sent = sent

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._sent(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
