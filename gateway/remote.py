"""How the command line talks to a running gateway: its admin REST, and what it says of errors.

It knows addresses, keys and pages; what the answers mean is not known here.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

URL_VARIABLE = "FAIRGATE_URL"
KEY_VARIABLE = "FAIRGATE_ADMIN_KEY"
URL_DEFAULT = "http://127.0.0.1:8080"
PREFIX = "/admin/v1"
TIMEOUT_S = 30.0
PAGE = 100
PAGES_MAX = 10_000
"""A gateway that always has another page is not followed for ever."""


class RemoteError(Exception):
    """What was asked for was not done, and why, in one line."""


class Remote:
    """One gateway, as an operator reaches it."""

    def __init__(
        self,
        url: str,
        key: str | None,
        transport: httpx.BaseTransport | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`timeout_s` bounds connecting and each silence of an answer."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._url = url
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=timeout_s, transport=transport, trust_env=False
        )

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def all(
        self, *path: str, query: Mapping[str, object] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Every item of a list, page by page. Raises RemoteError."""
        after: object = None
        for _ in range(PAGES_MAX):
            page = self.ask("GET", *path, query={"limit": PAGE, "after": after, **(query or {})})
            yield from page["data"]
            after = page["next"]
            if not page["has_more"]:
                return

    def ask(
        self,
        method: str,
        *path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Any:
        """What the gateway answers; None to an empty answer. Raises RemoteError."""
        return self.answer(method, *path, body=body, headers=headers, query=query)[0]

    def answer(
        self,
        method: str,
        *path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> tuple[Any, str | None]:
        """(what the gateway answers, its `ETag`). Raises RemoteError."""
        route = "/".join((PREFIX, *(quote(part, safe="") for part in path)))
        params = {name: _said(value) for name, value in (query or {}).items() if value is not None}
        try:
            reply = self._http.request(
                method, route, json=body, params=params, headers=dict(headers or {})
            )
        except httpx.InvalidURL as error:
            raise RemoteError(f"{self._url}: {error}") from None
        except httpx.HTTPError as error:
            raise RemoteError(f"{self._url} does not answer: {error}") from None
        if not reply.is_success:
            raise RemoteError(complaint(reply))
        try:
            return (reply.json() if reply.content else None), reply.headers.get("etag")
        except ValueError:
            raise RemoteError(f"{self._url} answers, but not in JSON: is it a gateway?") from None


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def complaint(reply: httpx.Response) -> str:
    """The gateway's own words, where it has any."""
    try:
        error = reply.json()["error"]
        place = f"{error['param']}: " if error.get("param") else ""
        return f"{place}{error['message']} ({reply.status_code} {error['code']})"
    except (KeyError, TypeError, ValueError):
        return f"it answered {reply.status_code} and no error of a gateway: is it one?"
