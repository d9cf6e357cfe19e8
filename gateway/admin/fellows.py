"""The other gateways of the cluster: asked for their part of what operators are told about all.

Each tells what it knows itself: its own requests, and the queues of what it leads. They are asked
with the credentials of whoever asks here, and not for long; who is silent is named in a header.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import gethostname
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, unquote

import httpx
from fastapi import Request, Response
from pydantic import BaseModel, ValidationError

from gateway.admin.paging import Key, Listing, Page, named
from gateway.upstream.unanswered import UNANSWERED

ASK_S = 1.0
"""So long another gateway may take."""
PICTURE_S = 0.4
"""So long the leader may take, where another gateway may be asked for its picture by a third."""
ASKED_MAX = 256
"""Gateways that are asked at once; further ones are silent."""
PART = "x-fairgate-part"
"""A request with this header is answered from this process alone."""
OWN, PICTURE = "own", "picture"
"""Its values: of the requests that are here, and of what the scheduler here knows."""
KEY = "x-fairgate-key"
"""The id under which the scheduler there has the request."""
SILENT = "x-fairgate-silent"
"""Of an answer: gateways whose part is missing in it."""
PASSED_ON = ("authorization", "x-api-key")

V = TypeVar("V", bound=BaseModel)


class Fellows(Protocol):
    """What the operators' side has to know of the cluster."""

    def others(self) -> Mapping[str, str]:
        """The other gateways: where each listens to operators, as `Address` writes it, by name."""

    def leader_of(self, model: str) -> str | None:
        """Who decides for `model`; None: this gateway does, or nobody else is known to."""

    def acts_for(self, model: str) -> bool:
        """Whether this gateway, and no other one, does what is to be done about its replicas."""

    def key_here(self, request_id: str) -> str:
        """The id under which the scheduler of this process has a request of this gateway."""

    def key_there(self, request_id: str) -> str:
        """The id under which the scheduler of its leader has it."""

    def waits(self, request_id: str) -> bool:
        """Whether it waits for a grant, wherever it is decided."""


class NoFellows:
    """A gateway that is alone."""

    def others(self) -> Mapping[str, str]:
        """None."""
        return MappingProxyType({})

    def leader_of(self, model: str) -> str | None:
        """This one."""
        return None

    def acts_for(self, model: str) -> bool:
        """This one."""
        return True

    def key_here(self, request_id: str) -> str:
        """Its own."""
        return request_id

    def key_there(self, request_id: str) -> str:
        """Its own."""
        return request_id

    def waits(self, request_id: str) -> bool:
        """The scheduler of this process knows all that wait."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a gateway listens to operators."""

    url: str
    socket: str | None = None
    """On the same machine: a path."""
    machine: str | None = None
    """The only one from which that URL leads there; None: any."""

    @property
    def near(self) -> str | None:
        """Its socket, if that is on this machine."""
        return self.socket if self.socket and Path(self.socket).is_socket() else None

    def written(self) -> str:
        """As it is told to the others."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Address | None":
        """Of what another gateway wrote; None: no address."""
        try:
            told = json.loads(text)
            return cls(url=str(told["url"]), socket=told.get("socket"), machine=told.get("machine"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def part_of(request: Request) -> str | None:
    """Which part another gateway asks for; None: an operator asks, for all of it."""
    return request.headers.get(PART)


def key_in(request: Request) -> str | None:
    """The id under which the scheduler here has the request that is asked for."""
    key = request.headers.get(KEY)
    return None if key is None else unquote(key)


class Inquiry:
    """Asks the others, on behalf of whoever asks here."""

    def __init__(self, fellows: Fellows) -> None:
        self._fellows = fellows

    async def together(
        self,
        request: Request,
        response: Response,
        own: Listing[V],
        *,
        page: Page,
        view: type[V],
        key: Callable[[V], Key],
        joined: Callable[[V, V], V] = lambda first, _: first,
        otherwise: Iterable[V] = (),
    ) -> Listing[V]:
        """One page of what all gateways list; `own` is the same page of this one.

        `joined`: two items with one key as one. `otherwise`: told where nobody else tells better.
        """
        others = {} if part_of(request) else self._fellows.others()
        pages = [own]
        if others:
            answers = await self._ask(others, request, OWN)
            for answer in answers.values():
                pages += _listings(answer, view)
            _name_silent(response, [name for name in others if name not in answers])
        found: dict[Key, V] = {}
        for item in (*(item for each in pages for item in each.data), *otherwise):
            place = key(item)
            found[place] = joined(found[place], item) if place in found else item
        places = sorted(found)
        shown = places[: page.limit]
        has_more = len(places) > page.limit or any(each.has_more for each in pages)
        return Listing[V](
            data=[found[place] for place in shown],
            has_more=has_more,
            next=named(shown[-1]) if has_more and shown else None,
        )

    async def elsewhere(self, request: Request, response: Response) -> "httpx.Response | None":
        """What the gateway answers that has the request; None: none has it."""
        others = {} if part_of(request) else self._fellows.others()
        answers = await self._ask(others, request, OWN)
        _name_silent(response, [name for name in others if name not in answers])
        return next((each for each in answers.values() if each.status_code < 300), None)

    async def pictured(
        self, request: Request, response: Response, model: str, request_id: str
    ) -> "httpx.Response | None":
        """What the leader of `model` answers about a request of ours; None: we know best."""
        leader = None if part_of(request) == PICTURE else self._fellows.leader_of(model)
        if leader is None:
            return None
        known = self._fellows.others()
        asked = {leader: known[leader]} if leader in known else {}
        key = quote(self._fellows.key_there(request_id), safe="")
        answers = await self._ask(asked, request, PICTURE, {KEY: key}, within_s=PICTURE_S)
        found = answers.get(leader)
        if found is None or found.status_code != 200:
            _name_silent(response, [leader])
            return None
        return found

    async def _ask(
        self,
        others: Mapping[str, str],
        request: Request,
        part: str,
        more: Mapping[str, str] = MappingProxyType({}),
        *,
        within_s: float = ASK_S,
    ) -> dict[str, httpx.Response]:
        """What those answer that do, by name."""
        names = sorted(others)[:ASKED_MAX]
        kept = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        headers = {**kept, **more, PART: part}
        answers = await asyncio.gather(
            *(_asked(others[name], request, headers, within_s) for name in names)
        )
        return {
            name: answer for name, answer in zip(names, answers, strict=True) if answer is not None
        }


async def _asked(
    where: str, request: Request, headers: Mapping[str, str], within_s: float
) -> httpx.Response | None:
    address = Address.read(where)
    if address is None or (address.near is None and address.machine not in (None, gethostname())):
        return None
    query = request.scope["query_string"].decode("latin-1")
    target = request.scope["path"] + (f"?{query}" if query else "")
    near = address.near
    # To read the certificates of a system takes long, and mostly nobody needs them.
    is_tls = near is None and address.url.startswith("https:")
    transport = httpx.AsyncHTTPTransport(uds=near, verify=is_tls)
    base = "http://localhost" if near else address.url
    try:
        async with (
            asyncio.timeout(within_s),
            httpx.AsyncClient(transport=transport, base_url=base) as http,
        ):
            return await http.request(request.method, target, headers=headers)
    except UNANSWERED:
        return None


def _listings(answer: httpx.Response, view: type[V]) -> Sequence[Listing[V]]:
    """The page that a gateway told; none where it is not one, as from another version."""
    if answer.status_code != 200:
        return ()
    try:
        told: dict[str, Any] = answer.json()
        data = [view.model_validate(each) for each in told["data"]]
        return (Listing[V](data=data, has_more=bool(told["has_more"]), next=None),)
    except (ValueError, KeyError, TypeError, ValidationError):
        return ()


def _name_silent(response: Response, names: Sequence[str]) -> None:
    if names:
        response.headers[SILENT] = ",".join(names)
