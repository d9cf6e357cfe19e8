"""Keys, tenants and users over REST: who comes and goes without a restart."""

import asyncio
import hashlib
import logging
import tracemalloc
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from gateway.tenancy.store.memory import MemoryStore
from tests.support.gateway import eventually
from tests.support.held_engine import HeldEngine, running_held_engine
from tests.support.losable_store import LosableStore
from tests.support.operating import CHAT, PATH, V1, Operated, WallClock, operated

FILE_KEY = "fg-of-the-file"
FILE: dict[str, Any] = {
    "tenants": [{"name": "filed", "weight": 2, "users": {"fay": {"weight": 3}}}],
    "keys": [{"tenant": "filed", "key_sha256": hashlib.sha256(FILE_KEY.encode()).hexdigest()}],
}
MADE_UP = 100_000


@pytest.fixture
async def engine() -> AsyncIterator[HeldEngine]:
    """An engine of four slots."""
    async with running_held_engine(4) as held:
        yield held


@pytest.fixture
def wall() -> WallClock:
    """A clock that only the test moves."""
    return WallClock()


@pytest.fixture
async def at(engine: HeldEngine, wall: WallClock) -> AsyncIterator[Operated]:
    """A gateway with one tenant and one key in its file."""
    async with operated({"url": engine.url, "max_num_seqs": 4}, wall=wall, **FILE) as site:
        yield site


async def test_a_key_lives_from_its_making_to_its_revocation(at: Operated, wall: WallClock) -> None:
    """The whole everyday life of a key, none of it with a restart."""
    made = await at.made_key(label="ci", user="bot", tier="background", max_tier="high",
                             models=["raw"], limits={"concurrent": 2})  # fmt: skip
    key, key_id = made["key"], made["id"]
    assert key.startswith(f"fg-{key_id}-")
    assert await at.status_with(key) == 404
    principal = at.running.gateway.keyring.find(key.encode())
    assert principal is not None
    assert (principal.tenant, principal.user, principal.tier, principal.max_tier) == (
        "acme", "bot", 3, 1,
    )  # fmt: skip
    assert principal.key_id == key_id
    shown = await at.admin.get(f"{V1}/keys/{key_id}")
    assert "key" not in shown.json()
    assert (shown.json()["limits"]["concurrent"], shown.json()["state"]) == (2, "good")
    text = repr(await at.office.store.read()) + repr(await at.office.audit())
    assert key.removeprefix(f"fg-{key_id}-") not in text
    blocked = await at.call("PATCH", f"/keys/{key_id}", 200, json={"blocked": True})
    assert (blocked["state"], blocked["label"], blocked["tier"]) == ("blocked", "ci", "background")
    answer = await at.http.post(PATH, json=CHAT, headers={"x-api-key": key})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "blocked" in answer.json()["error"]["message"]
    await at.call("PATCH", f"/keys/{key_id}", 200, json={"blocked": False})
    assert await at.status_with(key) == 404
    await at.call("PATCH", f"/keys/{key_id}", 200, json={"expires_at": wall.now + 60})
    assert await at.status_with(key) == 404
    wall.now += 60
    answer = await at.http.post(PATH, json=CHAT, headers={"x-api-key": key})
    assert "expired" in answer.json()["error"]["message"]
    assert (await at.call("GET", f"/keys/{key_id}", 200))["state"] == "expired"
    await at.call("PATCH", f"/keys/{key_id}", 200, json={"expires_at": None})
    assert await at.status_with(key) == 404
    await at.call("DELETE", f"/keys/{key_id}", 412, headers={"if-match": '"1"'})
    await at.call("DELETE", f"/keys/{key_id}", 204)
    assert await at.status_with(key) == 401
    await at.call("GET", f"/keys/{key_id}", 404)


async def test_a_rotated_key_overlaps_as_long_as_was_asked_for(
    at: Operated, wall: WallClock
) -> None:
    """Clients change their key one after another; the last must not be cut off by the first."""
    made = await at.made_key()
    path = f"/keys/{made['id']}/rotate"
    second = await at.call("POST", path, 200, json={"overlap_s": 100})
    assert second["rotates_until"] == wall.now + 100
    assert [await at.status_with(key) for key in (made["key"], second["key"])] == [404, 404]
    third = await at.call("POST", path, 200, json={"overlap_s": 50})
    keys = [made["key"], second["key"], third["key"]]
    assert [await at.status_with(key) for key in keys] == [401, 404, 404]
    wall.now += 50
    assert [await at.status_with(key) for key in keys] == [401, 401, 404]
    at_once = await at.call("POST", path, 200)
    assert [await at.status_with(key) for key in (third["key"], at_once["key"])] == [401, 404]
    for overlap_s in (-1, 1e9, "1"):
        await at.call("POST", path, 400, json={"overlap_s": overlap_s})


async def test_a_repeated_order_makes_one_key_and_shows_it_once(at: Operated) -> None:
    """A script that lost the answer tries again; what it gets must be no second door."""
    await at.call("POST", "/tenants", 201, json={"name": "acme"})
    order = {"json": {"tenant": "acme"}, "headers": {"idempotency-key": "order-1"}}
    first = await at.call("POST", "/keys", 201, **order)
    again = await at.call("POST", "/keys", 201, **order)
    assert first["key"] is not None
    assert (again["id"], again["key"]) == (first["id"], None)
    assert "was shown" in again["notice"]
    assert len((await at.call("GET", "/keys?tenant=acme", 200))["data"]) == 1
    kept = await at.office.answered("order-1")
    assert kept is not None
    assert first["key"].encode() not in kept.body
    order["headers"] = {"idempotency-key": "order-2"}
    path = f"/keys/{first['id']}/rotate"
    turned = await at.call("POST", path, 200, headers=order["headers"])
    again = await at.call("POST", path, 200, headers=order["headers"])
    assert again["key"] is None
    assert await at.status_with(turned["key"]) == 404


async def test_the_first_key_closes_an_open_gateway_and_the_last_opens_none(
    engine: HeldEngine,
) -> None:
    """Whoever revokes a leaked key must not let in everybody instead, restart or not."""
    store = MemoryStore()
    async with operated(engine.url, store=store) as at:
        assert await at.status_with(None) == 404
        made = await at.made_key()
        assert await at.status_with(None) == 401
        await at.call("DELETE", f"/keys/{made['id']}", 204)
        assert [await at.status_with(key) for key in (None, made["key"])] == [401, 401]
    async with operated(engine.url, store=store) as at:
        assert await at.status_with(None) == 401


async def test_what_is_wrong_with_a_key_is_said(at: Operated, wall: WallClock) -> None:
    """A key that quietly is another one than was ordered lets in whom nobody wanted."""
    await at.call("POST", "/tenants", 201, json={"name": "acme"})
    for fields, param in (
        ({"tenant": "nobody"}, "tenant"),
        ({"tier": "none"}, "tier"),
        ({"tier": "high", "max_tier": "background"}, "max_tier"),
        ({"expires_at": wall.now}, "expires_at"),
        ({"models": []}, "models"),
        ({"limits": {"concurrent": 0}}, "limits.concurrent"),
        ({"budget": 1}, "budget"),
        ({"user": "a/b"}, "user"),
    ):
        refused = await at.call("POST", "/keys", 400, json={"tenant": "acme", **fields})
        assert refused["error"]["param"] == param
    await at.call("POST", "/keys", 400, content=b"{")
    assert at.office.records("key") == {}


async def test_what_the_file_has_is_shown_and_not_changed_here(at: Operated) -> None:
    """Else the next start would bring back what an operator believes to have changed."""
    (key,) = (await at.call("GET", "/keys", 200))["data"]
    assert (key["source"], key["tenant"], key["version"]) == ("file", "filed", None)
    for method, path, options in (
        ("PATCH", f"/keys/{key['id']}", {"json": {"blocked": True}}),
        ("DELETE", f"/keys/{key['id']}", {}),
        ("POST", f"/keys/{key['id']}/rotate", {}),
        ("PATCH", "/tenants/filed", {"json": {"weight": 1}}),
        ("DELETE", "/tenants/filed", {}),
        ("POST", "/tenants", {"json": {"name": "filed"}}),
        ("PATCH", "/users/filed/fay", {"json": {"weight": 1}}),
        ("DELETE", "/users/filed/fay", {}),
        ("POST", "/users", {"json": {"tenant": "filed", "name": "fay"}}),
    ):
        refused = await at.call(method, path, 409, **options)
        assert refused["error"]["code"] == "configured_in_file"
        assert "command line" in refused["error"]["message"]  # where this test configures it
    assert await at.status_with(FILE_KEY) == 404


async def test_tenants_and_users_share_as_they_are_told_to(at: Operated) -> None:
    """What is changed here is what the scheduler divides by, from the next decision on."""
    scheduler = at.running.gateway.scheduler
    made = await at.call("POST", "/tenants", 201, json={"name": "acme", "weight": 4})
    assert scheduler.policy.tenant_weight("acme") == 4
    await at.call("POST", "/tenants", 409, json={"name": "acme"})
    changed = await at.call(
        "PATCH", "/tenants/acme", 200, json={"room": {"requests": 5}},
        headers={"if-match": f'"{made["version"]}"'},
    )  # fmt: skip
    assert (changed["weight"], changed["room"]["requests"]) == (4, 5)
    assert scheduler.policy.tenants["acme"].room.requests == 5
    await at.call("PATCH", "/tenants/acme", 412, json={"weight": 1},
                  headers={"if-match": f'"{made["version"]}"'})  # fmt: skip
    await at.call("POST", "/users", 201, json={"tenant": "acme", "name": "al@x", "weight": 2})
    await at.call("POST", "/users", 201, json={"tenant": "filed", "name": "new", "weight": 5})
    assert scheduler.policy.user_weight("acme", "al@x") == 2
    assert [scheduler.policy.user_weight("filed", each) for each in ("new", "fay")] == [5, 3]
    await at.call("POST", "/users", 400, json={"tenant": "none", "name": "x"})
    await at.call("POST", "/users", 409, json={"tenant": "acme", "name": "al@x"})
    listed = await at.call("GET", "/users?tenant=acme", 200)
    assert [user["name"] for user in listed["data"]] == ["al@x"]
    await at.call("PATCH", "/users/acme/al%40x", 200, json={"weight": 7})
    assert scheduler.policy.user_weight("acme", "al@x") == 7
    await at.call("DELETE", "/users/acme/al%40x", 204)
    assert scheduler.policy.user_weight("acme", "al@x") == 1
    await at.call("GET", "/users/acme/al%40x", 404)
    await at.call("DELETE", "/users/filed/new", 204)
    tenants = (await at.call("GET", "/tenants", 200))["data"]
    assert [(each["name"], each["source"]) for each in tenants] == [
        ("acme", "store"), ("filed", "file"),
    ]  # fmt: skip


async def test_a_tenant_with_keys_goes_only_with_all_of_them(at: Operated) -> None:
    """A tenant that is gone while its keys go on would be served by nobody's leave."""
    made = await at.made_key()
    await at.call("POST", "/users", 201, json={"tenant": "acme", "name": "alice"})
    refused = await at.call("DELETE", "/tenants/acme", 409)
    assert refused["error"]["code"] == "in_use"
    assert "1 keys, 1 users" in refused["error"]["message"]
    assert await at.status_with(made["key"]) == 404
    await at.call("DELETE", "/tenants/acme?cascade=true", 204)
    assert await at.status_with(made["key"]) == 401
    assert at.office.records("user") == {}
    await at.call("GET", "/tenants/acme", 404)


async def test_a_key_follows_the_tier_that_it_names(at: Operated) -> None:
    """A renamed tier must neither lock its keys out nor lift them up."""
    made = await at.made_key(tier="background", max_tier="background")
    keyring = at.running.gateway.keyring
    refused = await at.call("DELETE", "/policy", 404)
    document, match = await at.policy()
    change = {"tiers": document["tiers"][:3]}
    refused = await at.call("PUT", "/policy", 400, json=document | change, headers=match)
    assert "background" in refused["error"]["message"]
    put = {"name": "bulk", "queue_limit": 0, "rank": 3}
    await at.call("PUT", "/tiers/background", 200, json=put)
    found = keyring.find(made["key"].encode())
    assert found is not None
    assert (found.tier, found.max_tier) == (3, 3)
    await at.call("PUT", "/tiers/top", 200, json={"name": "top", "rank": 0})
    found = keyring.find(made["key"].encode())
    assert found is not None
    assert (found.tier, found.max_tier) == (4, 4)
    document, match = await at.policy()
    refused = await at.call("PUT", "/policy", 400, json=document | {"moved_to": {}}, headers=match)
    assert refused["error"]["param"] == "moved_to"
    assert "1 keys have the tier 'background'" in refused["error"]["message"]


async def test_lists_come_in_pages(at: Operated) -> None:
    """Ten thousand keys are looked through a screen at a time."""
    made = {(await at.made_key())["id"] for _ in range(5)}
    seen: list[str] = []
    after = ""
    while True:
        page = await at.call("GET", f"/keys?limit=2&tenant=acme{after}", 200)
        seen += [key["id"] for key in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['next']}"
    assert (set(seen), len(seen)) == (made, 5)
    assert seen == sorted(seen)
    for wrong in ("limit=0", "limit=100000", "after=x", "tenat=acme"):
        await at.call("GET", f"/keys?{wrong}", 400)


async def test_a_revoked_key_is_unknown_to_every_gateway_within_a_second(
    engine: HeldEngine,
) -> None:
    """A leaked key is revoked once, wherever; whoever has it must find no gateway that is late."""
    store = MemoryStore()
    async with operated(engine.url, store=store) as one, operated(engine.url, store=store) as two:
        made = await one.made_key(tier="high")
        await eventually(lambda: two.office.revision == one.office.revision)
        assert await two.status_with(made["key"]) == 404
        await one.call("DELETE", f"/keys/{made['id']}", 204)
        async with asyncio.timeout(1.0):
            while await two.status_with(made["key"]) != 401:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.02)
        document, match = await two.policy()
        change = {"scheduling": {"headroom_max": 0.05}}
        await two.call("PUT", "/policy", 200, json=document | change, headers=match)
        scheduler = one.running.gateway.scheduler
        await eventually(lambda: scheduler.policy.headroom_max == 0.05, within_s=2.0)
        assert await one.policy() == await two.policy()
        await one.call("PUT", "/tiers/lone", 200, json={"name": "lone", "queue_limit": None})
        await two.call("PUT", "/tiers/late", 200, json={"name": "late", "queue_limit": None})
        await eventually(lambda: one.office.revision == two.office.revision)
        for each in (one, two):
            names = [tier["name"] for tier in (await each.policy())[0]["tiers"]]
            assert names[-2:] == ["lone", "late"]


async def test_a_store_that_is_lost_stops_operators_and_nobody_else(
    engine: HeldEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """The database is restarted in the afternoon; users must not notice, operators must."""
    store = LosableStore()
    async with operated(engine.url, store=store) as at:
        made = await at.made_key()
        store.is_lost = True
        await eventually(lambda: at.office.fault)
        assert await at.status_with(made["key"]) == 404
        refused = await at.call("PATCH", f"/keys/{made['id']}", 503, json={"blocked": True})
        assert refused["error"]["code"] == "store_unavailable"
        assert (await at.call("GET", f"/keys/{made['id']}", 200))["state"] == "good"
        ready = await at.http.get("/readyz")
        assert (ready.status_code, ready.json()["store_error"]) == (200, "the line is cut")
        assert "fairgate_store_up 0.0" in (await at.http.get("/metrics")).text
        store.is_lost = False
        await eventually(lambda: at.office.fault is None)
        await at.call("PATCH", f"/keys/{made['id']}", 200, json={"blocked": True})
        assert (await at.http.get("/readyz")).json()["store_error"] is None
    said = [record for record in caplog.records if record.name == "fairgate.store"]
    assert [record.levelno for record in said] == [logging.ERROR, logging.WARNING]


async def test_made_up_keys_leave_nothing_behind(at: Operated) -> None:
    """Who guesses keys by the million must not fill memory, nor the operators' time series."""
    await at.made_key(expires_at=at.office.wall() + 1e6)
    keyring, random = at.running.gateway.keyring, Random(6)
    for _ in range(100):
        assert await at.status_with(f"fg-{random.getrandbits(200):x}") == 401
    labels = (await at.http.get("/metrics")).text.count("\n")
    find, refusal = keyring.find, keyring.refusal
    for number in range(1_000):
        find(b"fg-%x" % number)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(MADE_UP):
        guess = b"fg-%x" % random.getrandbits(200)
        assert find(guess) is None
        refusal(guess)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 64 << 10
    for _ in range(100):
        assert await at.status_with(f"fg-{random.getrandbits(200):x}") == 401
    assert (await at.http.get("/metrics")).text.count("\n") == labels
