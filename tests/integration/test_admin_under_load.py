"""A hundred policies, one after another, while users work: they notice nothing of it."""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from gateway.core import invariants
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.support.gateway import eventually
from tests.support.operating import PATH, Operated, operated

ENGINE = EmulatorOptions(speed=50.0, max_num_seqs=4, mean_tokens=20)
CLIENTS = 24
"""Three times what both engines run at once."""
TIERS_MAX = 6
NAMES = [f"t{number}" for number in range(60)]


def other_policy(policy: dict[str, Any], random: Random, names: Iterator[str]) -> dict[str, Any]:
    """A policy that differs in one of the ways in which operators change theirs."""
    tiers = [{**tier, "queue_limit": None} for tier in policy["tiers"]]
    moved_to = dict(policy["moved_to"])
    kind = random.choice(("add", "remove", "rename", "reorder", "weights", "headroom"))
    if kind == "add" and len(tiers) < TIERS_MAX:
        fresh = {"name": next(names), "min_share": random.choice((0.0, 0.02))}
        tiers.insert(random.randrange(len(tiers) + 1), fresh)
    elif kind == "remove" and len(tiers) > 1:
        gone = tiers.pop(random.randrange(len(tiers)))["name"]
        moved_to = _moved(moved_to, gone, random.choice(tiers)["name"])
    elif kind == "rename":
        index = random.randrange(len(tiers))
        old, new = tiers[index]["name"], next(names)
        tiers[index] = {**tiers[index], "name": new}
        moved_to = _moved(moved_to, old, new)
    elif kind == "reorder":
        random.shuffle(tiers)
    elif kind == "weights":
        tiers = [{**tier, "weight": random.choice((1.0, 2.0, 5.0))} for tier in tiers]
    scheduling = {
        **policy["scheduling"],
        "headroom_max": random.choice((0.0, 0.1, 0.3)),
        "order": random.choice(("strict", "weighted")),
    }
    return {**policy, "tiers": tiers, "moved_to": moved_to, "scheduling": scheduling}


def _moved(moved_to: dict[str, str], old: str, new: str) -> dict[str, str]:
    return {name: new if to == old else to for name, to in moved_to.items()} | {old: new}


async def work(at: Operated, key: str, done: asyncio.Event, statuses: list[object]) -> None:
    """One client: a request after another, until it is over."""
    headers = {"authorization": f"Bearer {key}"}
    number = 0
    while not done.is_set():
        number += 1
        content = [{"role": "user", "content": "x" * 40}]
        body = {"model": "emulated", "messages": content, "stream": number % 2 == 0}
        answer = await at.http.post(PATH, json=body, headers=headers)
        whole = not body["stream"] or answer.text.endswith("data: [DONE]\n\n")
        statuses.append(answer.status_code if whole else answer.text[-200:])


@pytest.mark.parametrize(
    ("seed", "changes"),
    [
        (1, 25),
        *(pytest.param(seed, 100, marks=pytest.mark.soak) for seed in range(2, 6)),
    ],
)
async def test_policies_change_under_full_load_and_no_request_fails(
    seed: int, changes: int
) -> None:
    """The operator tries things out in the rush hour; that is when they matter."""
    random, done = Random(seed), asyncio.Event()
    statuses: list[object] = []
    names = iter(NAMES * 10)
    async with (
        running_emulator(ENGINE) as one,
        running_emulator(ENGINE) as two,
        operated(one.url, two.url) as at,
        asyncio.TaskGroup() as tasks,
    ):
        scheduler = at.running.gateway.scheduler
        tiers = ("critical", "high", "standard", "background")
        keys = [(await at.made_key(tier=tier, max_tier=tier))["key"] for tier in tiers]
        for number in range(CLIENTS):
            tasks.create_task(work(at, keys[number % len(keys)], done, statuses))
        await eventually(lambda: scheduler.waiting)
        for _ in range(changes):
            policy, match = await at.policy()
            wanted = other_policy(policy, random, names)
            await at.call("PUT", "/policy", 200, json=wanted, headers=match)
            assert [tier.name for tier in scheduler.policy.tiers] == [
                tier["name"] for tier in wanted["tiers"]
            ]
            invariants.check(scheduler)
            served = len(statuses)
            await eventually(lambda: len(statuses) > served)  # noqa: B023 - read at once
        done.set()
    assert set(statuses) == {200}
    assert len(statuses) > changes
    assert at.running.in_flight == 0
    invariants.check(scheduler)
