"""One user who asks for much more than others, through several gateways or one, and what each got.

It looks into the replicas all the while: how many requests are there beyond the slots.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import httpx

from gateway.bench.cluster_site import Engine, Node
from gateway.bench.cluster_spec import ANSWERS_TOKENS, USERS, ClusterPlan, PowerRun, Served
from gateway.bench.replies import MODEL

PATH = "/v1/chat/completions"
WAIT_HEADER = "x-fairgate-queue-ms"
LOOK_EVERY_S = 0.05
ANSWER_S_MAX = 60.0
PAUSE_S = 0.1
"""After an error."""
APART = 3
"""Answers that one client of a user is ahead of the one before."""


@dataclass(slots=True)
class Window:
    """What ended in it."""

    clock: Callable[[], float]
    began_s: float
    ends_s: float
    requests: dict[str, int] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    errors: int = 0
    queued_most: int = 0
    looks: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nobody asks again."""
        return self.clock() >= self.ends_s

    def run(self, gateways: int, users: Iterable[str]) -> PowerRun:
        """All that was seen in it."""
        return PowerRun(
            gateways=gateways,
            users={
                user: Served(
                    requests=self.requests.get(user, 0),
                    waited_s=self.waited_s.get(user, 0.0),
                    took_s=self.took_s.get(user, 0.0),
                )
                for user in users
            },
            queued_most=self.queued_most,
            looks=self.looks,
            errors=self.errors,
        )

    def ended(self, user: str, began_s: float, waited_s: float) -> None:
        """One request was answered."""
        now_s = self.clock()
        if self.began_s <= now_s < self.ends_s:
            self.requests[user] = self.requests.get(user, 0) + 1
            self.waited_s[user] = self.waited_s.get(user, 0.0) + waited_s
            self.took_s[user] = self.took_s.get(user, 0.0) + now_s - began_s

    def looked(self, queued: int) -> None:
        """So many are in a replica beyond its slots."""
        self.looks += 1
        self.queued_most = max(self.queued_most, queued)


async def power_load(
    nodes: Sequence[Node],
    engines: Sequence[Engine],
    plan: ClusterPlan,
    users: Mapping[str, int] = USERS,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> PowerRun:
    """Clients of all users at all of these gateways, for one window."""
    began_s = clock() + plan.settle_s
    window = Window(clock, began_s, began_s + plan.power_s)
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(timeout=ANSWER_S_MAX, limits=limits) as client,
        asyncio.TaskGroup() as tasks,
    ):
        looking = [tasks.create_task(_look(client, each, window)) for each in engines]
        asking = [
            tasks.create_task(_ask(client, nodes[number % len(nodes)], user, window, number=number))
            for user, clients in users.items()
            for number in range(clients)
        ]
        await asyncio.wait(asking)
        for each in looking:
            each.cancel()
    return window.run(len(nodes), users)


def answers_of(number: int) -> Iterator[int]:
    """Tokens of each answer of a user's client: the same for all in the end, but never in step."""
    first = APART * number % len(ANSWERS_TOKENS)
    return cycle(ANSWERS_TOKENS[first:] + ANSWERS_TOKENS[:first])


async def _ask(
    client: httpx.AsyncClient, node: Node, user: str, window: Window, *, number: int
) -> None:
    url = f"http://127.0.0.1:{node.port}{PATH}"
    headers = {"authorization": f"Bearer {node.keys[user]}"}
    words = [{"role": "user", "content": f"Say something, {user}."}]
    for tokens in answers_of(number):
        if window.is_over:
            return
        body = {"model": MODEL, "messages": words, "max_tokens": tokens}
        began_s = window.clock()
        try:
            answer = await client.post(url, json=body, headers=headers)
            answer.raise_for_status()
            waited_s = float(answer.headers[WAIT_HEADER]) / 1e3
        except (httpx.HTTPError, KeyError, ValueError):
            window.errors += 1
            await asyncio.sleep(PAUSE_S)
        else:
            window.ended(user, began_s, waited_s)


async def _look(client: httpx.AsyncClient, engine: Engine, window: Window) -> None:
    url = f"http://127.0.0.1:{engine.port}/load"
    while True:
        try:
            inside = int((await client.get(url)).json()["server_load"])
        except (httpx.HTTPError, KeyError, ValueError):
            window.errors += 1
        else:
            window.looked(max(0, inside - engine.slots))
        await asyncio.sleep(LOOK_EVERY_S)
