"""The configuration is read again while requests wait and run: all of them go on."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.core import invariants
from gateway.settings import Settings, SettingsError, load_settings
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import HeldEngine, running_held_engine
from tests.support.house import settled_by

CHAT: dict[str, object] = {"model": "raw", "messages": [{"role": "user", "content": "x"}]}
STREAM = {**CHAT, "stream": True}
PATH = "/v1/chat/completions"
TIERS = [{"name": "gold", "queue_limit": 1}, {"name": "lead", "queue_limit": 0}]


class Site:
    """A gateway whose settings can be changed key by key."""

    def __init__(
        self, running: Running, http: httpx.AsyncClient, values: Mapping[str, object]
    ) -> None:
        self.running = running
        self.http = http
        self.values = dict(values)

    def reload(self, **changes: object) -> frozenset[str]:
        """Go on with these changes; underscores in pairs stand for dots."""
        self.values |= {name.replace("__", "."): value for name, value in changes.items()}
        return self.running.gateway.reload(self.settings())

    def settings(self) -> Settings:
        """As they are now."""
        return load_settings(config=None, environ={}, overrides=self.values)

    def ask(self, body: object = STREAM, **headers: str) -> "asyncio.Task[httpx.Response]":
        """A request under way."""
        return asyncio.create_task(self.http.post(PATH, json=body, headers=headers))

    @property
    def probes(self) -> int:
        """Probes that run now."""
        return sum(
            "Probe.run" in repr(task.get_coro()) and not task.cancelling()
            for task in asyncio.all_tasks()
        )

    async def metrics(self) -> str:
        """What a scrape sees."""
        return (await self.http.get("/metrics")).text


def replica(engine: HeldEngine, **options: object) -> dict[str, object]:
    """As it stands in the file."""
    return {"url": engine.url, "max_num_seqs": engine.slots, **options}


@asynccontextmanager
async def site(*engines: HeldEngine, **values: object) -> AsyncIterator[Site]:
    """A gateway before these engines."""
    replicas = [replica(engine) for engine in engines]
    async with (
        running_gateway(*replicas, **values) as running,  # type: ignore[arg-type]  # free keywords
        client(running) as http,
    ):
        given = {name.replace("__", "."): value for name, value in values.items()}
        base = {"scheduling.scrape_interval_s": 0.1, "bounds.loop_lag_s": 0}
        start = {"replicas": replicas, **base, **given}
        yield Site(running, http, start)


@pytest.fixture
async def engine() -> AsyncIterator[HeldEngine]:
    """An engine of one slot."""
    async with running_held_engine(1) as held:
        yield held


def finish(engine: HeldEngine, number: int = -1) -> None:
    """The engine answers that request."""
    held = engine.asked[number]
    held.begin()
    held.event()
    held.finish()


async def test_what_waits_and_what_runs_moves_with_its_tier(engine: HeldEngine) -> None:
    """An operator who renames a tier in the afternoon must lose nobody's request."""
    async with site(engine, tiers=TIERS, service_tiers={"default": "lead"}) as at:
        settled = settled_by(at.running)
        calls = [at.ask()]
        await eventually(lambda: engine.here)
        calls.append(at.ask())
        await eventually(lambda: at.running.gateway.scheduler.waiting)
        changed = at.reload(
            tiers=[{"name": "vip"}, *TIERS[:1], {"name": "bulk"}],
            service_tiers={"default": "bulk"}, moved_to={"lead": "bulk"},
        )  # fmt: skip
        assert changed == {"tiers", "service_tiers", "moved_to"}
        (waiting,) = at.running.gateway.scheduler.waiting.values()
        assert waiting.request.tier == 2
        invariants.check(at.running.gateway.scheduler)
        finish(engine)
        await eventually(lambda: len(engine.asked) == 2)
        finish(engine)
        answers = await asyncio.gather(*calls)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
        assert [record.tier for record in settled] == ["bulk", "bulk"]
        assert (
            await at.http.post(PATH, json=CHAT, headers={"x-fairgate-tier": "lead"})
        ).status_code == 400


async def test_a_retry_after_the_change_has_the_new_rank(engine: HeldEngine) -> None:
    """The rank that it arrived with may no longer exist."""
    async with (
        running_held_engine(1) as other,
        site(engine, other, tiers=TIERS, service_tiers={"default": "lead"}) as at,
    ):
        call = at.ask(CHAT)
        await eventually(lambda: engine.here or other.here)
        first, second = (engine, other) if engine.here else (other, engine)
        at.reload(tiers=TIERS[:1], service_tiers={"default": "gold"}, moved_to={"lead": "gold"})
        first.asked[0].writer.transport.abort()
        await eventually(lambda: second.here)
        second.asked[0].answer(b"{}")
        assert (await call).status_code == 200


async def test_a_tier_that_leaves_its_requests_nowhere_changes_nothing(engine: HeldEngine) -> None:
    """Half a change would be worse than none."""
    async with site(engine, tiers=TIERS, bounds__waiting=5) as at:
        with pytest.raises(SettingsError, match="'lead' was removed: say in moved_to"):
            at.reload(tiers=TIERS[:1], bounds__waiting=7)
        scheduler = at.running.gateway.scheduler
        assert [tier.name for tier in scheduler.policy.tiers] == ["gold", "lead"]
        assert scheduler.policy.bounds.waiting == 5
        assert at.running.gateway.settings.bounds.waiting == 5


async def test_keys_come_and_go_at_once(engine: HeldEngine) -> None:
    """A key that was revoked must not work for another second; also while its body comes."""

    def key(text: str) -> dict[str, Any]:
        return {
            "tenant": "t",
            "user": text,
            "key_sha256": hashlib.sha256(text.encode()).hexdigest(),
        }

    async with site(engine, keys=[key("old"), key("both")]) as at:
        port = int(at.running.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer old\r\n"
            b"content-length: 9\r\n\r\n{"
        )
        await eventually(lambda: at.running.gateway.relay.lives)
        running = at.ask(authorization="Bearer old")
        await eventually(lambda: engine.here)
        at.reload(keys=[key("both"), key("new")])
        writer.write(b"}       ")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.close()
        for text, status in (("old", 401), ("new", 404), ("both", 404)):
            answer = await at.http.post(
                PATH, json={**CHAT, "model": "unknown"}, headers={"authorization": f"Bearer {text}"}
            )
            assert answer.status_code == status, text
        finish(engine)
        assert (await running).status_code == 200


async def test_a_replica_that_is_added_is_used_and_one_that_is_removed_is_emptied(
    engine: HeldEngine,
) -> None:
    """The everyday change of a fleet: its streams go on, and nothing is left of it afterwards."""
    async with running_held_engine(4) as other, site(engine) as at:
        old, new = (f"127.0.0.1-{each.port}" for each in (engine, other))
        stream = at.ask()
        await eventually(lambda: engine.here)
        engine.asked[0].begin()
        at.reload(replicas=[replica(other)])
        assert at.running.gateway.fleet.names() == {old, new}
        scheduler = at.running.gateway.scheduler
        await eventually(lambda: new in scheduler.replicas and scheduler.replicas[old].is_draining)
        calls = [at.ask(CHAT) for _ in range(3)]
        await eventually(lambda: len(other.here) == 3)
        await asyncio.sleep(1.2)
        assert at.running.gateway.fleet.names() == {old, new}
        assert f'replica="{old}"' in await at.metrics()
        assert not stream.done()
        engine.asked[0].event()
        engine.asked[0].finish()
        assert (await stream).text.endswith("data: [DONE]\n\n")
        await eventually(lambda: at.running.gateway.fleet.names() == {new})
        text = await at.metrics()
        assert f'replica="{old}"' not in text
        assert f'replica="{new}"' in text
        assert len(engine.asked) == 1
        for held in other.asked:
            held.answer(b"{}")
        assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200] * 3
        assert at.probes == 1


async def test_there_is_one_probe_a_replica_after_any_number_of_changes(
    engine: HeldEngine,
) -> None:
    """Others have left old checks running, or cancelled the new ones."""
    async with running_held_engine(4) as other, site(engine) as at:
        for number in range(20):
            both = [replica(engine, weight=1.0 + number), replica(other)]
            at.reload(replicas=both if number % 3 else both[:1])
            await asyncio.sleep(0)
        assert sorted(at.running.gateway.fleet.names()) == sorted(
            f"127.0.0.1-{each.port}" for each in (engine, other)
        )
        assert at.probes == 2
        await eventually(
            lambda: (
                sum(each.is_usable for each in at.running.gateway.scheduler.replicas.values()) == 2
            )
        )
        at.reload(replicas=[replica(engine)])
        await asyncio.sleep(0)
        assert at.probes == 1
        assert len(at.running.gateway.scheduler.replicas) == 1


async def test_other_options_of_a_replica_count_at_once_and_its_streams_go_on(
    engine: HeldEngine,
) -> None:
    """The engine was restarted with more slots; nobody should have to restart the gateway."""
    async with site(engine) as at:
        stream = at.ask()
        await eventually(lambda: engine.here)
        engine.asked[0].begin()
        (believed,) = at.running.gateway.scheduler.replicas.values()
        at.reload(replicas=[replica(engine, max_num_seqs=3, weight=2.5)])
        assert (believed.slots, believed.weight, believed.is_usable) == (3, 2.5, True)
        assert at.running.gateway.fleet.lists("raw")
        calls = [at.ask(CHAT) for _ in range(2)]
        await eventually(lambda: len(engine.here) == 3)
        for held in engine.asked[1:]:
            held.answer(b"{}")
        engine.asked[0].event()
        engine.asked[0].finish()
        assert (await stream).text.endswith("data: [DONE]\n\n")
        assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200, 200]


async def test_certificates_that_cannot_be_read_change_nothing(
    engine: HeldEngine, tmp_path: Any
) -> None:
    """Found while half of the change is made, it would leave a gateway that nobody configured."""
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    async with site(engine) as at:
        with pytest.raises(SettingsError, match="cannot be read"):
            at.reload(
                replicas=[replica(engine), {"url": "https://127.0.0.1:1", "ca_file": str(broken)}],
                bounds__waiting=7,
            )
        assert len(at.running.gateway.fleet.names()) == 1
        assert at.running.gateway.scheduler.policy.bounds.waiting != 7


async def test_models_aliases_and_bounds_change(engine: HeldEngine) -> None:
    """What a client may ask for, and how much of it."""
    async with site(engine) as at:
        assert (await at.http.post(PATH, json={**CHAT, "model": "gpt"})).status_code == 404
        model = {"name": "raw", "aliases": ["gpt"], "replicas": [replica(engine)]}
        at.reload(replicas=(), models=[model], bounds__body=1024)
        call = at.ask({**CHAT, "model": "gpt"})
        await eventually(lambda: engine.here)
        engine.asked[0].answer(b'{"model":"raw"}')
        assert (await call).json()["model"] == "gpt"
        assert (await at.http.post(PATH, content=b"x" * 2000)).status_code == 413


async def test_what_cannot_change_stays_and_is_told(
    engine: HeldEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator who waits for the new port should learn that a restart is needed."""
    async with site(engine) as at:
        port = at.running.gateway.settings.listen.port
        assert at.reload(listen__port=1) == frozenset()
        assert at.running.gateway.settings.listen.port == port
    assert "listen cannot change while running" in caplog.text


async def test_fair_and_fifo_change_into_each_other_under_load(engine: HeldEngine) -> None:
    """The contrast is tried on a live system too."""
    async with site(engine, tiers=TIERS) as at:
        calls = [at.ask(CHAT) for _ in range(4)]
        await eventually(lambda: at.running.gateway.scheduler.waiting)
        at.reload(policy="fifo")
        calls.append(at.ask(CHAT))
        await eventually(lambda: len(engine.here) >= 2)
        at.reload(policy="fair")
        invariants.check(at.running.gateway.scheduler)
        served = 0
        while served < 5:
            await eventually(lambda: len(engine.asked) > served)  # noqa: B023 - read at once
            engine.asked[served].answer(b"{}")
            served += 1
        assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200] * 5
