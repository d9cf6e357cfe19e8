"""The console over real sockets: its pages, who gets which, the figures, the playground."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.admin.console_pages import console_pages
from gateway.admin.lookout import LOOK_S
from gateway.admin.overview import TENANTS_MAX
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.tenancy.keys import key_hash
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import HeldEngine, running_held_engine

FAST = EmulatorOptions(profile="instant")
ADMIN, ALICE, BOB = "fg-admin", "fg-alice", "fg-bob"
KEYS = [
    {"tenant": "acme", "tier": "standard", "max_tier": "high", "key_sha256": key_hash(b"fg-alice"),
     "speaks_for_users": True},
    {"tenant": "beta", "tier": "background", "max_tier": "background",
     "key_sha256": key_hash(b"fg-bob")},
]  # fmt: skip
CHAT: dict[str, Any] = {
    "model": "emulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3,
}  # fmt: skip
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
OVERVIEW, HISTORY = "/admin/v1/overview", "/admin/v1/overview/history"
PLAY = "/console/chat"
POLICY = "content-security-policy"


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """What the playground asks in the end."""
    async with running_emulator(FAST) as emulator:
        yield emulator


@pytest.fixture
async def guarded(engine: Emulator) -> AsyncIterator[Running]:
    """A gateway with an admin key and keys of clients."""
    async with running_gateway(
        engine.url, keys=KEYS, tenants=[{"name": "acme", "weight": 2}, {"name": "beta"}],
        admin={"key_sha256": key_hash(ADMIN.encode())},
    ) as running:  # fmt: skip
        yield running


@pytest.fixture
async def http(guarded: Running) -> AsyncIterator[httpx.AsyncClient]:
    """Nobody in particular."""
    async with client(guarded) as http:
        yield http


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error."""
    return answer.status_code, answer.json()["error"]["code"]


async def test_the_pages_need_no_key_and_say_what_they_may_do(http: httpx.AsyncClient) -> None:
    """A browser that opens an address has no header to put a key into."""
    for path, page in console_pages().items():
        answer = await http.get(path)
        assert (answer.status_code, answer.content) == (200, page.body), path
        headers = answer.headers
        parts = (each.strip().partition(" ") for each in headers[POLICY].split(";"))
        policy = {name: value for name, _, value in parts}
        assert policy["default-src"] == "'none'"
        assert policy["connect-src"] == policy["style-src"] == policy["img-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in headers[POLICY]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-cache"
    assert (await http.get("/console")).headers["content-type"] == "text/html; charset=utf-8"


async def test_a_page_that_is_known_is_not_sent_again(http: httpx.AsyncClient) -> None:
    """The second look is as quick as the line allows."""
    tag = (await http.get("/console/app.js")).headers["etag"]
    for known in (tag, f"W/{tag}"):
        again = await http.get("/console/app.js", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers[POLICY]
    other = await http.get("/console/app.js", headers={"if-none-match": '"other"'})
    assert other.status_code == 200
    head = await http.head("/console/app.js")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(other.content)


async def test_only_the_files_themselves_are_there(http: httpx.AsyncClient) -> None:
    """A way from a folder of pages to the rest of the disk is the oldest hole of all."""
    for path in (
        "/console/", "/console/index.html", "/console/vendor", "/console/vendor/LICENCES.md",
        "/console/../admin/door.py", "/console/%2e%2e/door.py", "/console/..%2fdoor.py",
        "/console/app.js/", "/console//app.js", "/Console", "/console/none.js",
    ):  # fmt: skip
        assert code(await http.get(path)) == (404, "not_found"), path
    posted = await http.post("/console")
    assert (*code(posted), posted.headers["allow"]) == (405, "method_not_allowed", "GET, HEAD")
    assert (await http.get("/console", params={"key": ADMIN})).status_code == 400


async def test_a_page_of_somebody_else_gets_none_of_it(
    engine: Emulator, http: httpx.AsyncClient
) -> None:
    """Clickjacking and DNS rebinding begin with loading the page."""
    for headers in (
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ):
        assert code(await http.get("/console", headers=headers)) == (403, "foreign_origin")
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (await http.get("/console", headers=followed)).status_code == 200
    async with running_gateway(engine.url) as at_home, client(at_home) as other:
        for path in ("/console", "/console/entry", OVERVIEW):
            answer = await other.get(path, headers={"host": "evil.example"})
            assert code(answer) == (403, "foreign_origin")
        assert (await other.get("/console/entry")).json() == {"needs_key": False}


async def test_the_page_is_told_whether_a_key_is_needed(http: httpx.AsyncClient) -> None:
    """One that had to try would begin with an error."""
    answer = await http.get("/console/entry")
    assert answer.json() == {"needs_key": True}
    assert answer.headers["cache-control"] == "no-store"


async def test_all_figures_need_the_key(http: httpx.AsyncClient) -> None:
    """The page is everybody's, what it shows is not."""
    for headers in ({}, {"authorization": f"Bearer {ALICE}"}):
        for path in (OVERVIEW, HISTORY):
            assert code(await http.get(path, headers=headers)) == (403, "forbidden")
        assert code(await http.post(PLAY, json=CHAT, headers=headers)) == (403, "forbidden")


async def test_the_console_is_on_the_operators_listener_alone(engine: Emulator) -> None:
    """Where operators have a listener of their own nothing of theirs is on the other."""
    async with (
        running_gateway(engine.url, listen__admin_port=0) as running,
        client(running) as http,
    ):
        for path in ("/console", "/console/app.js", "/console/entry", OVERVIEW):
            assert code(await http.get(path)) == (404, "not_found")
        assert code(await http.post(PLAY, json=CHAT)) == (404, "not_found")
        async with httpx.AsyncClient(base_url=running.operators_url) as operators:
            assert (await operators.get("/console")).status_code == 200
            assert (await operators.get("/console/vendor/preact.mjs")).status_code == 200
            assert (await operators.get(OVERVIEW)).status_code == 200
            answer = await operators.post(PLAY, json=CHAT)
            assert answer.status_code == 200, "the playground asks from there all the same"


async def test_the_playground_asks_as_the_client_whose_key_it_has(
    guarded: Running, http: httpx.AsyncClient, engine: Emulator
) -> None:
    """A playground with rights of its own would show what no client ever gets."""
    play = {**AS_ADMIN, "x-playground-key": ALICE, "x-fairgate-tier": "high"}
    answer = await http.post(PLAY, json=CHAT, headers=play)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"]
    assert answer.headers["x-fairgate-tier"] == "high"
    assert answer.headers["x-fairgate-queue-ms"].isdigit()
    assert answer.headers["x-fairgate-replica"]
    above = await http.post(PLAY, json=CHAT, headers={**play, "x-fairgate-tier": "critical"})
    assert above.headers["x-fairgate-tier"] == "high", "no further than the key may"
    assert all(ADMIN not in str(each) and ALICE not in str(each) for each in engine.received)


async def test_the_playground_needs_both_keys(http: httpx.AsyncClient, engine: Emulator) -> None:
    """The admin key opens no engine, and a client's key opens nothing here."""
    assert code(await http.post(PLAY, json=CHAT, headers=AS_ADMIN)) == (401, "invalid_api_key")
    wrong = {**AS_ADMIN, "x-playground-key": ADMIN}
    assert code(await http.post(PLAY, json=CHAT, headers=wrong)) == (401, "invalid_api_key")
    alone = {"x-playground-key": ALICE}
    assert code(await http.post(PLAY, json=CHAT, headers=alone)) == (403, "forbidden")
    foreign = {**AS_ADMIN, "x-playground-key": ALICE, "origin": "https://evil.example"}
    assert code(await http.post(PLAY, json=CHAT, headers=foreign)) == (403, "foreign_origin")
    assert engine.received == ()


async def test_the_playground_streams_and_passes_errors_on(http: httpx.AsyncClient) -> None:
    """What a client sees, byte for byte: also where it goes wrong."""
    play = {**AS_ADMIN, "x-playground-key": ALICE}
    async with http.stream("POST", PLAY, json={**CHAT, "stream": True}, headers=play) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = (await answer.aread()).decode()
    assert text.count("data: ") >= 3
    assert text.endswith("data: [DONE]\n\n")
    none = await http.post(PLAY, json={**CHAT, "model": "none"}, headers=play)
    assert code(none) == (404, "model_not_found")
    assert (await http.post(PLAY, content=b"{", headers=play)).status_code == 400


@pytest.fixture
async def held() -> AsyncIterator[tuple[HeldEngine, Running, httpx.AsyncClient]]:
    """One slot, which answers when it is told; two tenants."""
    async with (
        running_held_engine(1) as engine,
        running_gateway(
            {"url": engine.url, "max_num_seqs": 1}, keys=KEYS,
            tenants=[{"name": "acme", "weight": 2}, {"name": "beta"}],
            admin={"key_sha256": key_hash(ADMIN.encode())},
        ) as running,
        client(running) as http,
    ):  # fmt: skip
        yield engine, running, http


async def test_a_playground_that_is_left_frees_its_place(
    held: tuple[HeldEngine, Running, httpx.AsyncClient],
) -> None:
    """Closing the tab must not leave a request in the queue."""
    engine, running, http = held
    play = {**AS_ADMIN, "x-playground-key": BOB}
    asked = [
        asyncio.ensure_future(http.post(PLAY, json={**CHAT, "model": "raw"}, headers=play))
        for _ in range(2)
    ]
    await eventually(lambda: engine.here and running.gateway.scheduler.waiting)
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await eventually(lambda: not running.in_flight)


async def test_the_overview_tells_who_waits_how_long_and_what_would_be_fair(
    held: tuple[HeldEngine, Running, httpx.AsyncClient],
) -> None:
    """The first question at night, answered in one look."""
    _, running, http = held
    asked = []
    for key in (ALICE, ALICE, ALICE, BOB, BOB):
        headers = {"authorization": f"Bearer {key}", "x-fairgate-tier": "background"}
        asked.append(
            asyncio.ensure_future(
                http.post("/v1/chat/completions", json={**CHAT, "model": "raw"}, headers=headers)
            )
        )
        await eventually(lambda: running.in_flight == len(asked))
    told = (await http.get(OVERVIEW, headers=AS_ADMIN)).json()
    assert (told["waiting"], told["held"], told["running"]) == (4, 0, 1)
    assert told["waiting_most"] == running.gateway.scheduler.policy.bounds.waiting
    names = [tier["name"] for tier in told["tiers"]]
    assert names == ["critical", "high", "standard", "background"]
    last = told["tiers"][3]
    assert (last["waiting"], last["running"], last["share"], last["fair_share"]) == (
        4,
        1,
        1.0,
        None,
    )
    assert last["position"] == 4
    assert 0 <= last["oldest_wait_s"] < 60
    acme, beta = told["tenants"]
    assert (acme["name"], acme["weight"], acme["running"], acme["waiting"]) == ("acme", 2.0, 1, 2)
    assert (beta["name"], beta["share"], beta["waiting"]) == ("beta", 0.0, 2)
    assert (acme["fair_share"], beta["fair_share"]) == (0.6667, 0.3333)
    (row,) = beta["tiers"]
    assert (row["name"], row["waiting"]) == ("background", 2)
    assert row["position"] >= 2
    users = (await http.get(f"{OVERVIEW}/users", headers=AS_ADMIN)).json()
    alice, bob = users["users"]
    assert (alice["tenant"], alice["waiting"], alice["running"]) == ("acme", 2, 1)
    assert (bob["tenant"], bob["waiting"], bob["running"], bob["position"]) == ("beta", 2, 0, 4)
    only: dict[str, str | int] = {"tenant": "beta", "limit": 1}
    users = (await http.get(f"{OVERVIEW}/users", params=only, headers=AS_ADMIN)).json()
    assert ([each["tenant"] for each in users["users"]], users["users_more"]) == (["beta"], 0)
    one = (await http.get(OVERVIEW, params={"tenant": "beta"}, headers=AS_ADMIN)).json()
    assert [each["name"] for each in one["tenants"]] == ["beta"]
    first = (await http.get(OVERVIEW, params={"limit": 1}, headers=AS_ADMIN)).json()
    assert ([each["name"] for each in first["tenants"]], first["tenants_more"]) == (["acme"], 1)
    for limit in (0, TENANTS_MAX + 1):
        answer = await http.get(OVERVIEW, params={"limit": limit}, headers=AS_ADMIN)
        assert answer.status_code == 400
    await eventually(lambda: running.gateway.operators.desk.history.samples)
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_however_many_look_it_is_counted_once_a_second(
    http: httpx.AsyncClient, guarded: Running
) -> None:
    """Twenty open consoles must not cost twenty times what one costs."""
    answers = await asyncio.gather(*(http.get(OVERVIEW, headers=AS_ADMIN) for _ in range(20)))
    first = {answer.json()["at"] for answer in answers}
    assert len(first) <= 2, "a second may have passed between"
    await asyncio.sleep(LOOK_S)
    assert (await http.get(OVERVIEW, headers=AS_ADMIN)).json()["at"] not in first


async def test_the_history_begins_before_anybody_looks(
    http: httpx.AsyncClient, guarded: Running
) -> None:
    """What happened before the page was opened is why it is opened."""
    await eventually(lambda: guarded.gateway.operators.desk.history.samples)
    told = (await http.get(HISTORY, headers=AS_ADMIN)).json()
    assert len(told["at"]) >= 1
    assert [each["name"] for each in told["tiers"]] == [
        "critical", "high", "standard", "background",
    ]  # fmt: skip
    assert all(len(each["waiting"]) == len(told["at"]) for each in told["tiers"])
