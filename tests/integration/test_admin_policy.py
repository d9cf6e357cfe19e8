"""The policy over REST: whoever changes it sees before what will happen, and loses no request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.core import invariants
from tests.support.gateway import eventually
from tests.support.held_engine import HeldEngine, running_held_engine
from tests.support.operating import CHAT, PATH, V1, Operated, operated

TIERS = [{"name": "gold", "queue_limit": 1}, {"name": "lead", "queue_limit": 0}]
SETTINGS: dict[str, Any] = {
    "tiers": TIERS, "service_tiers": {"default": "lead"}, "scheduling.recall": False,
}  # fmt: skip
FIRST = 2
"""Requests that fill the engine: one that runs, one that waits inside it."""


@pytest.fixture
async def engine() -> AsyncIterator[HeldEngine]:
    """An engine of one slot."""
    async with running_held_engine(1) as held:
        yield held


@pytest.fixture
async def at(engine: HeldEngine) -> AsyncIterator[Operated]:
    """A gateway with two tiers before it."""
    async with operated({"url": engine.url, "max_num_seqs": 1}, **SETTINGS) as site:
        yield site


def ask(at: Operated, **headers: str) -> "asyncio.Task[Any]":
    """A request under way."""
    return asyncio.create_task(at.http.post(PATH, json=CHAT, headers=headers))


async def queue(at: Operated, engine: HeldEngine, *tiers: str) -> list["asyncio.Task[Any]"]:
    """Requests that fill the engine, and behind them one in each of these tiers, by u0, u1..."""
    scheduler = at.running.gateway.scheduler
    calls = [ask(at)]
    await eventually(lambda: engine.here)
    calls.append(ask(at, **{"x-fairgate-tier": "gold"}))
    await eventually(lambda: len(engine.here) == FIRST)
    for number, tier in enumerate(tiers):
        calls.append(ask(at, **{"x-fairgate-tier": tier, "x-fairgate-user": f"u{number}"}))
        await eventually(lambda: len(scheduler.waiting) == number + 1)  # noqa: B023 - read at once
    return calls


async def served(engine: HeldEngine, calls: list["asyncio.Task[Any]"], answered: int = 0) -> None:
    """The engine answers everything else, and everybody is content."""
    for number in range(answered, len(calls)):
        await eventually(lambda: len(engine.asked) > number)  # noqa: B023 - read at once
        engine.asked[number].answer(b"{}")
    assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200] * len(calls)


async def test_what_is_read_can_be_sent_back_and_changes_nothing(at: Operated) -> None:
    """Whoever edits one line of it must not have to take it apart first."""
    document, match = await at.policy()
    assert document["source"] == "file"
    assert [tier["name"] for tier in document["tiers"]] == ["gold", "lead"]
    tried = await at.call("PUT", "/policy?dry_run=true", 200, json=document, headers=match)
    assert tried["would_change"] is False
    before = at.running.gateway.scheduler.policy
    put = await at.call("PUT", "/policy", 200, json=document, headers=match)
    assert put["source"] == "store"
    assert at.running.gateway.scheduler.policy == before
    again, match = await at.policy()
    assert match == {"if-match": f'"{put["version"]}"'}
    for section in ("tiers", "scheduling", "bounds", "moved_to", "scaling", "retries"):
        assert again[section] == document[section]


async def test_two_operators_cannot_overwrite_each_other(at: Operated) -> None:
    """Whose change is lost learns of it when users complain."""
    document, match = await at.policy()
    refused = await at.call("PUT", "/policy", 428, json=document)
    assert refused["error"]["code"] == "precondition_required"
    await at.call("PUT", "/policy", 200, json=document, headers=match)
    refused = await at.call("PUT", "/policy", 412, json=document, headers=match)
    assert refused["error"]["code"] == "precondition_failed"
    for weak in ('W/"1"', '"x"', "1", ""):
        await at.call("PUT", "/policy", 412, json=document, headers={"if-match": weak})
    await at.call("PUT", "/policy", 200, json=document, headers={"if-match": "*"})


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"tiers": [{"name": "gold", "weight": 0}]}, "tiers[0].weight", "greater than 0"),
        ({"tiers": [{"name": "gold", "wieght": 1}]}, "tiers[0].wieght", "did you mean weight"),
        ({"tiers": [{"name": "gold"}], "service_tiers": None}, "tiers", "say in moved_to"),
        ({"tiers": [{"name": "gold"}, {"name": "gold"}]}, "tiers[1].name", "another tier"),
        ({"tiers": []}, "tiers", "at least one"),
        ({"moved_to": {"lead": "gold"}}, "moved_to.lead", "this tier exists"),
        ({"service_tiers": {"default": "none"}}, "service_tiers.default", "no tier 'none'"),
        ({"bounds": {"waiting": "many"}}, "bounds.waiting", "must be"),
        ({"listen": {"port": 1}}, "listen", "no part of a policy"),
        ({"keepalive_after_s": -1}, "keepalive_after_s", "greater than or equal to 0"),
    ],
)
async def test_what_is_wrong_is_told_with_its_place_and_changes_nothing(
    at: Operated, change: dict[str, Any], param: str, message: str
) -> None:
    """Half a policy, or one that was merely nearly right, must never be in force."""
    document, match = await at.policy()
    before = at.running.gateway.scheduler.policy
    for dry_run in ("false", "true"):
        path = f"/policy?dry_run={dry_run}"
        refused = await at.call("PUT", path, 400, json=document | change, headers=match)
        assert refused["error"]["param"] == param
        assert message in refused["error"]["message"]
        assert refused["error"]["type"] == "invalid_request_error"
    assert at.running.gateway.scheduler.policy is before
    assert at.office.revision == 0


async def test_a_dry_run_tells_what_comes_of_it_and_does_nothing(
    at: Operated, engine: HeldEngine
) -> None:
    """The operator decides on what is shown, so it must be what then happens."""
    calls = await queue(at, engine, "lead", "lead", "gold")
    document, match = await at.policy()
    revision, before = at.office.revision, at.running.gateway.scheduler.policy
    change = {
        "tiers": [{"name": "vip"}, {"name": "bulk", "queue_limit": 0}],
        "moved_to": {"gold": "bulk", "lead": "vip"}, "service_tiers": {"default": "vip"},
    }  # fmt: skip
    told = await at.call("PUT", "/policy?dry_run=true", 200, json=document | change, headers=match)
    assert (at.office.revision, at.running.gateway.scheduler.policy) == (revision, before)
    assert told["would_change"]
    paths = {each["path"]: each for each in told["changes"]}
    assert paths["tiers.gold"]["after"] is None
    assert paths["order of tiers"]["after"] == ["vip", "bulk"]
    tiers = {tier["name"]: tier for tier in told["affected"]["tiers"]}
    assert (tiers["gold"]["becomes"], tiers["gold"]["waiting"]) == ("bulk", 1)
    assert (tiers["lead"]["becomes"], tiers["lead"]["waiting"], tiers["lead"]["running"]) == (
        "vip", 2, 1,
    )  # fmt: skip
    assert (told["affected"]["waiting"], told["affected"]["running"]) == (3, 2)
    assert told["affected"]["tenants"] == ["default"]
    reaction = told["reaction"]
    turns = [(each["user"], each["turn_before"], each["turn_after"]) for each in reaction["turns"]]
    assert turns == [("u0", 2, 1), ("u1", 3, 2), ("u2", 1, 3)]
    assert (reaction["moved_earlier"], reaction["moved_later"]) == (2, 1)
    await at.call("PUT", "/policy", 200, json=document | change, headers=match)
    order = [turn["request_id"] for turn in reaction["turns"]]
    granted, ended = at.running.gateway.scheduler.granted, 0
    for turn, request_id in enumerate(order):
        while request_id not in granted:
            assert not granted.keys() & set(order[turn:])
            await eventually(lambda: len(engine.asked) > ended)  # noqa: B023 - read at once
            held = engine.asked[ended]
            held.answer(b"{}")
            ended += 1
            await eventually(lambda: held.id not in granted)  # noqa: B023 - read at once
    await served(engine, calls, ended)


async def test_a_request_in_a_removed_tier_lands_where_moved_to_says(
    at: Operated, engine: HeldEngine
) -> None:
    """It waited in good faith; only the operator knows where it belongs now."""
    calls = await queue(at, engine, "gold", "lead")
    scheduler = at.running.gateway.scheduler
    refused = await at.call("DELETE", "/tiers/gold?moved_to=gold", 400)
    assert refused["error"]["param"] == "moved_to"
    await at.call("DELETE", "/tiers/gold?moved_to=lead", 200)
    assert [each.request.tier for each in scheduler.waiting.values()] == [0, 0]
    assert [tier.name for tier in scheduler.policy.tiers] == ["lead"]
    invariants.check(scheduler)
    await at.call("DELETE", "/tiers/lead?moved_to=gold", 400)
    await served(engine, calls)


async def test_tiers_are_made_moved_renamed_and_removed_one_by_one(at: Operated) -> None:
    """Who wants one more tier should not have to send all that there is."""
    made = await at.call("PUT", "/tiers/vip", 200, json={"name": "vip", "rank": 0})
    assert (made["rank"], made["in_force"]["queue_limit"]) == (0, 3)
    await at.call("PUT", "/tiers/lead", 200, json={"name": "base", "queue_limit": 0})
    document, match = await at.policy()
    assert [tier["name"] for tier in document["tiers"]] == ["vip", "gold", "base"]
    assert document["moved_to"] == {"lead": "base"}
    assert document["service_tiers"] == {"default": "base"}
    moved = await at.call(
        "PUT", "/tiers/gold", 200, json={"name": "gold", "rank": 2, "queue_limit": None},
        headers=match,
    )  # fmt: skip
    assert moved["rank"] == 2
    listed = await at.call("GET", "/tiers?limit=2", 200)
    assert [tier["name"] for tier in listed["data"]] == ["vip", "base"]
    assert listed["has_more"]
    rest = await at.call("GET", f"/tiers?limit=2&after={listed['next']}", 200)
    assert ([tier["name"] for tier in rest["data"]], rest["has_more"]) == (["gold"], False)
    await at.call("PUT", "/tiers/gold", 412, json={"name": "gold"}, headers=match)
    await at.call("PUT", "/tiers/gold", 400, json={"name": "vip"})
    await at.call("PUT", "/tiers/none", 400, json={"name": "some"})
    await at.call("GET", "/tiers/none", 404)
    await at.call("DELETE", "/tiers/none?moved_to=vip", 404)
    tried = await at.call("DELETE", "/tiers/base?moved_to=vip&dry_run=true", 200)
    assert tried["would_change"]
    left = await at.call("DELETE", "/tiers/base?moved_to=vip", 200)
    assert [tier["name"] for tier in left["data"]] == ["vip", "gold"]
    document, _ = await at.policy()
    assert document["moved_to"] == {"lead": "vip", "base": "vip"}


async def test_earlier_policies_are_listed_shown_and_restored(
    at: Operated, engine: HeldEngine
) -> None:
    """Whoever is awake undoes yesterday's change, without knowing what it was."""
    calls = await queue(at, engine, "gold")
    first = await at.put_policy(scheduling={"headroom_max": 0.1})
    await at.put_policy(
        tiers=[*TIERS[:1], {"name": "mid"}, {"name": "low"}], moved_to={"lead": "mid"},
        service_tiers={"default": "low"}, scheduling={"headroom_max": 0.3},
    )  # fmt: skip
    listed = await at.call("GET", "/policy/revisions?limit=1", 200)
    assert listed["has_more"]
    (newest,) = listed["data"]
    assert (newest["who"], newest["action"]) == ("local", "policy.put")
    assert "scheduling.headroom_max" in newest["changed"]
    (older,) = (await at.call("GET", f"/policy/revisions?after={listed['next']}", 200))["data"]
    assert older["revision"] == int(first["version"])
    shown = await at.call("GET", f"/policy/revisions/{older['revision']}", 200)
    assert shown["policy"]["scheduling"]["headroom_max"] == 0.1
    await at.call("GET", "/policy/revisions/999", 404)
    await at.call("GET", "/policy/revisions?after=x", 400)
    path = f"/policy/revisions/{older['revision']}/restore"
    refused = await at.call("POST", path, 400)
    assert "'mid' was removed" in refused["error"]["message"]
    back = await at.call("POST", path, 200, json={"moved_to": {"mid": "lead", "low": "lead"}})
    assert [tier["name"] for tier in back["tiers"]] == ["gold", "lead"]
    assert at.running.gateway.scheduler.policy.headroom_max == 0.1
    await served(engine, calls)


async def test_the_policy_of_the_file_comes_back(at: Operated, engine: HeldEngine) -> None:
    """What was tried out on a Friday must be gone without a trace when it is taken back."""
    document, _ = await at.policy()
    before = at.running.gateway.scheduler.policy
    await at.call("DELETE", "/policy", 404)
    await at.call("PUT", "/tiers/extra", 200, json={"name": "extra", "queue_limit": None})
    await at.call("PUT", "/tiers/lead", 200, json={"name": "lead", "queue_limit": None})
    calls = await queue(at, engine, "extra")
    refused = await at.call("DELETE", "/policy", 400)
    assert "'extra' was removed" in refused["error"]["message"]
    await at.call("DELETE", "/policy?moved_to=none", 400)
    tried = await at.call("DELETE", "/policy?moved_to=gold&dry_run=true", 200)
    assert tried["affected"]["waiting"] == 1
    back = await at.call("DELETE", "/policy?moved_to=gold", 200)
    assert back["source"] == "file"
    assert back["tiers"] == document["tiers"]
    assert at.running.gateway.scheduler.policy == before
    (waiting,) = at.running.gateway.scheduler.waiting.values()
    assert waiting.request.tier == 0
    await served(engine, calls)


async def test_a_policy_of_a_fifo_gateway_is_not_refused(engine: HeldEngine) -> None:
    """The contrast is operated too."""
    async with operated({"url": engine.url, "max_num_seqs": 1}, policy="fifo") as at:
        put = await at.put_policy(scheduling={"headroom_max": 0.0})
        assert put["scheduling"]["headroom_max"] == 0.0


async def test_a_queue_too_long_to_copy_is_said_to_be_so(
    at: Operated, engine: HeldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run must not stop the gateway that it is tried out on."""
    monkeypatch.setattr("gateway.admin.reaction.REHEARSED_MAX", 1)
    calls = await queue(at, engine, "gold")
    document, match = await at.policy()
    change = {"scheduling": {"headroom_max": 0.0}}
    told = await at.call("PUT", "/policy?dry_run=true", 200, json=document | change, headers=match)
    assert told["reaction"] is None
    assert told["affected"]["waiting"] == 0
    await served(engine, calls)


async def test_answers_say_which_version_they_are_of(at: Operated) -> None:
    """A console that shows a tier can change that very tier and no newer one."""
    for path in ("/policy", "/tiers", "/tiers/gold"):
        answer = await at.admin.get(V1 + path)
        assert answer.headers["etag"] == (await at.policy())[1]["if-match"]
