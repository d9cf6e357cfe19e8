"""Replicas that operators add, drain and remove while the gateway serves."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.tenancy.store.port import Record
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.losable_store import LosableStore

REPLICAS = "/admin/v1/replicas"
CHAT = {"model": "emulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
FAST = EmulatorOptions(profile="instant")
METADATA = [
    "http://169.254.169.254", "http://169.254.169.254/latest", "http://2852039166",
    "http://0xa9fea9fe", "http://[::ffff:169.254.169.254]", "http://[fe80::1]:8000",
    "http://[fd00:ec2::254]", "http://0", "http://nowhere.invalid:8000",
]  # fmt: skip


@dataclass(slots=True)
class Place:
    """A gateway before one configured engine, and another one that nobody told it of."""

    engine: Emulator
    other: Emulator
    store: LosableStore
    running: Running
    http: httpx.AsyncClient

    async def add(self, **fields: object) -> httpx.Response:
        """Add a replica."""
        return await self.http.post(REPLICAS, json={"url": self.other.url, **fields})

    async def replica(self, name: str) -> dict[str, Any]:
        """One of them."""
        answer = await self.http.get(f"{REPLICAS}/{name}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def ask(self) -> str:
        """The name of the replica that served a request."""
        answer = await self.http.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200, answer.text
        return str(answer.headers["x-fairgate-replica"])

    def is_usable(self, name: str) -> bool:
        """Whether anything new may go there."""
        replica = self.running.gateway.scheduler.replicas.get(name)
        return replica is not None and replica.is_usable


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """Operators on this machine."""
    store = LosableStore()
    async with (
        running_emulator(FAST) as engine,
        running_emulator(FAST) as other,
        running_gateway(engine.url, store=store) as running,
        client(running) as http,
    ):
        yield Place(engine, other, store, running, http)


def name_of(engine: Emulator) -> str:
    """As the gateway calls it."""
    return engine.url.removeprefix("http://").replace(":", "-")


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error."""
    return answer.status_code, answer.json()["error"]["code"]


async def test_a_replica_is_added_serves_is_drained_used_again_and_removed(place: Place) -> None:
    """A machine comes and goes, and nobody restarts anything."""
    mine, added = name_of(place.engine), name_of(place.other)
    answer = await place.add(max_num_seqs=7, weight=2.0)
    assert answer.status_code == 201
    told = answer.json()
    assert (told["name"], told["source"], told["max_num_seqs"]) == (added, "store", 7)
    await eventually(lambda: place.is_usable(added))
    replica = await place.replica(added)
    assert (replica["models"], replica["engine"], replica["url"]) == (
        ["emulated"], "vllm", place.other.url,
    )  # fmt: skip
    assert (replica["live"]["is_up"], replica["live"]["load"]["slots"]) == (True, 7)
    assert (await place.http.post(f"{REPLICAS}/{mine}/drain")).json()["is_drained"] is True
    assert [await place.ask() for _ in range(3)] == [added] * 3
    assert (await place.http.post(f"{REPLICAS}/{added}/drain")).status_code == 200
    assert code(await place.http.post("/v1/chat/completions", json=CHAT)) == (503, "no_replica")
    assert (await place.http.post(f"{REPLICAS}/{mine}/undrain")).json()["is_drained"] is False
    assert [await place.ask() for _ in range(3)] == [mine] * 3
    answer = await place.http.delete(f"{REPLICAS}/{added}")
    assert (answer.status_code, answer.content) == (204, b"")
    await eventually(lambda: added not in place.running.gateway.scheduler.replicas)
    assert code(await place.http.get(f"{REPLICAS}/{added}")) == (404, "replica_not_found")
    listed = (await place.http.get(REPLICAS)).json()["data"]
    assert [(each["name"], each["source"]) for each in listed] == [(mine, "file")]


async def test_what_was_added_and_drained_is_so_after_a_restart(place: Place) -> None:
    """An operator who drained a broken machine went to bed."""
    mine, added = name_of(place.engine), name_of(place.other)
    await place.add()
    await place.http.post(f"{REPLICAS}/{mine}/drain")
    async with (
        running_gateway(place.engine.url, store=place.store, wait_ready=False) as running,
        client(running) as http,
    ):
        await eventually(lambda: len(running.gateway.scheduler.replicas) == 2)
        answers = [await http.post("/v1/chat/completions", json=CHAT) for _ in range(3)]
        assert {each.headers["x-fairgate-replica"] for each in answers} == {added}
        assert (await http.get(f"{REPLICAS}/{mine}")).json()["live"]["is_draining"] is True


async def test_what_the_file_defines_is_neither_made_nor_removed_here(place: Place) -> None:
    """The next restart would undo it, and nobody would know why."""
    mine = name_of(place.engine)
    for answer in (
        await place.http.delete(f"{REPLICAS}/{mine}"),
        await place.add(url=place.engine.url),
    ):
        assert code(answer) == (409, "configured_in_file")
        assert mine in answer.json()["error"]["message"]
    assert await place.ask() == mine


async def test_a_replica_is_added_once(place: Place) -> None:
    """Two operators at the same time."""
    assert (await place.add()).status_code == 201
    assert code(await place.add()) == (409, "already_exists")


async def test_a_lost_answer_is_given_again_and_nothing_is_done_twice(place: Place) -> None:
    """The connection broke after the commit; the script tries again."""
    headers = {"idempotency-key": "add-1"}
    body = {"url": place.other.url}
    first = await place.http.post(REPLICAS, json=body, headers=headers)
    again = await place.http.post(REPLICAS, json=body, headers=headers)
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert (first.headers.get("x-fairgate-replayed"), again.headers["x-fairgate-replayed"]) == (
        None, "true",
    )  # fmt: skip
    other = await place.http.post(REPLICAS, json={"url": "http://127.0.0.1:1"}, headers=headers)
    assert code(other) == (422, "idempotency_key_reused")
    elsewhere = await place.http.post(f"{REPLICAS}/x/drain", headers=headers)
    assert code(elsewhere) == (422, "idempotency_key_reused")
    assert len(await place.store.audit()) == 1


async def test_what_changed_meanwhile_is_not_removed(place: Place) -> None:
    """Somebody drained it to look at it, and somebody else cleans up."""
    await place.add()
    path = f"{REPLICAS}/{name_of(place.other)}"
    etag = (await place.http.get(path)).headers["etag"]
    await place.http.post(f"{path}/drain")
    refused = await place.http.delete(path, headers={"if-match": etag})
    assert code(refused) == (412, "precondition_failed")
    etag = (await place.http.get(path)).headers["etag"]
    assert (await place.http.delete(path, headers={"if-match": etag})).status_code == 204


@pytest.mark.parametrize("url", METADATA)
async def test_an_operator_cannot_make_the_gateway_ask_the_clouds_metadata(
    place: Place, url: str
) -> None:
    """Its answers are credentials, and a replica's errors are shown to whoever asks."""
    assert code(await place.http.post(REPLICAS, json={"url": url})) == (
        400, "upstream_not_allowed",
    )  # fmt: skip
    assert await place.store.audit() == ()


async def test_a_dns_name_may_not_lead_there_either(place: Place) -> None:
    """It is looked up for as long as the gateway runs."""
    for dns in ("nowhere.invalid:8000", "0:8000", "2852039166:80"):
        answer = await place.http.post(REPLICAS, json={"dns": dns})
        assert code(answer) == (400, "upstream_not_allowed"), dns
        assert answer.json()["error"]["param"] == "dns"


async def test_a_dns_name_is_added_with_all_behind_it_and_removed_as_one(place: Place) -> None:
    """What is behind it has names of its own, and cannot be removed one by one."""
    port = place.other.url.rpartition(":")[2]
    assert (await place.http.post(REPLICAS, json={"dns": f"localhost:{port}"})).status_code == 201
    group = f"dns:localhost:{port}"
    scheduler = place.running.gateway.scheduler
    await eventually(lambda: len(scheduler.replicas) == 2)
    (member,) = (await place.replica(group))["members"]
    behind = await place.replica(member)
    assert (behind["dns"], behind["source"]) == (f"localhost:{port}", "store")
    refused = await place.http.delete(f"{REPLICAS}/{member}")
    assert (refused.status_code, group in refused.json()["error"]["message"]) == (409, True)
    assert (await place.http.post(f"{REPLICAS}/{group}/drain")).status_code == 400
    assert (await place.http.delete(f"{REPLICAS}/{group}")).status_code == 204
    await eventually(lambda: member not in scheduler.replicas)


@pytest.mark.parametrize(
    ("field", "value"),
    [("api_key_env", "AWS_SECRET_ACCESS_KEY"), ("ca_file", "/etc/shadow"), ("weight", 0),
     ("url", "http://user:pass@gpu0"), ("url", "ftp://gpu0"), ("url", None), ("dns", "x:1"),
     ("drained", True), ("max_num_seqs", "7"), ("engine", "other"), ("model", "")],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused_where_it_stands(
    place: Place, field: str, value: object
) -> None:
    """A variable that no replica uses yet would be sent to whatever the operator names."""
    answer = await place.add(**{field: value})
    assert code(answer)[0] == 400
    assert answer.json()["error"]["param"] in (field, "url")
    assert await place.store.audit() == ()


async def test_the_audit_tells_who_did_what_and_pages(place: Place) -> None:
    """The newest first; hashes of keys are told by their beginning."""
    await place.add()
    name = name_of(place.other)
    drained = await place.http.post(f"{REPLICAS}/{name}/drain")
    await place.http.post(f"{REPLICAS}/{name}/drain")
    await place.http.delete(f"{REPLICAS}/{name}")
    audit = (await place.http.get("/admin/v1/audit")).json()["data"]
    actions = ["replica.remove", "replica.drain", "replica.add"]
    assert [entry["action"] for entry in audit] == actions, "drained twice is drained once"
    assert audit[1]["request_id"] == drained.headers["x-request-id"]
    assert (audit[1]["who"], audit[1]["before"].get("drained"), audit[1]["after"]["drained"]) == (
        "local", None, True,
    )  # fmt: skip
    page = (await place.http.get("/admin/v1/audit", params={"limit": 2})).json()
    rest = await place.http.get("/admin/v1/audit", params={"after": page["next"]})
    assert [entry["action"] for entry in page["data"] + rest.json()["data"]] == actions
    for asked, count in (({"kind": "policy"}, 0), ({"id": name}, 3)):
        assert len((await place.http.get("/admin/v1/audit", params=asked)).json()["data"]) == count
    assert code(await place.http.get("/admin/v1/audit", params={"after": "x"})) == (
        400, "invalid_request",
    )  # fmt: skip


async def test_a_store_that_cannot_be_reached_is_503_and_changes_nothing(place: Place) -> None:
    """An operator must not believe that a machine is drained which is not."""
    place.store.is_lost = True
    name = name_of(place.engine)
    for answer in (
        await place.add(),
        await place.http.post(f"{REPLICAS}/{name}/drain"),
        await place.http.post(f"{REPLICAS}/{name}/drain", headers={"idempotency-key": "k"}),
        await place.http.get("/admin/v1/audit"),
    ):
        assert code(answer) == (503, "store_unavailable")
    assert await place.ask() == name


def test_a_record_of_a_drained_replica_is_no_address() -> None:
    """The flag of a configured replica must not become a replica of its own."""
    from gateway.admin.registry import drained_names, is_address

    records = [
        Record(kind="replica", id="a", version=1, body={"drained": True}),
        Record(kind="replica", id="b", version=1, body={"url": "http://b", "drained": True}),
        Record(kind="replica", id="c", version=1, body={"url": "http://c"}),
        Record(kind="tenant", id="d", version=1, body={"drained": True}),
    ]
    assert drained_names(records) == {"a", "b"}
    assert [is_address(each.body) for each in records] == [False, True, True, False]
