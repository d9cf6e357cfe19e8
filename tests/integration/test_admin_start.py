"""A gateway starts, and its file is read again, over a store that holds something already."""

import logging
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from gateway.admin.policy_document import checked
from gateway.app import Gateway
from gateway.settings import SettingsError, load_settings
from gateway.tenancy.store.memory import MemoryStore
from gateway.tenancy.store.port import Deed, StoreError, Write
from tests.support.held_engine import running_held_engine
from tests.support.operating import operated

DEED = Deed(at=1.0, who="earlier", action="policy.put")
POLICY = {"tiers": [{"name": "only"}, {"name": "rest"}], "service_tiers": {"default": "rest"}}


async def store_with(*writes: Write) -> MemoryStore:
    """A store that somebody used before."""
    store = MemoryStore()
    await store.commit(writes, DEED)
    return store


def policy(**sections: Any) -> Write:
    """A policy that was put before."""
    return Write(kind="policy", id="current", body=checked(POLICY | sections))


async def test_what_was_decided_is_in_force_from_the_first_request_on() -> None:
    """A restart must not give back to anybody what was taken from them."""
    store = await store_with(
        policy(), Write(kind="tenant", id="a", body={"name": "a", "weight": 3})
    )
    async with running_held_engine(1) as engine, operated(engine.url, store=store) as at:
        scheduler = at.running.gateway.scheduler
        assert [tier.name for tier in scheduler.policy.tiers] == ["only", "rest"]
        assert scheduler.policy.tenant_weight("a") == 3
        assert (await at.policy())[0]["source"] == "store"
        assert at.office.revision == 1


async def test_a_policy_that_does_not_fit_the_file_stops_nobody_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The file was changed while the gateway was down; it comes up, and says what it left out."""
    store = await store_with(policy())
    key = {"tenant": "t", "tier": "high", "key_sha256": "0" * 64}
    async with (
        running_held_engine(1) as engine,
        operated(engine.url, store=store, keys=[key]) as at,
    ):
        document, match = await at.policy()
        assert document["source"] == "file"
        assert [tier["name"] for tier in document["tiers"]][1] == "high"
        assert document["set_aside"]["version"] == 1
        assert "there is no tier 'high'" in document["set_aside"]["problems"][0]
        assert document["set_aside"]["policy"]["tiers"][0]["name"] == "only"
        tenant = await at.call("POST", "/tenants", 201, json={"name": "more", "weight": 2})
        assert tenant["problems"] == []
        assert at.running.gateway.scheduler.policy.tenant_weight("more") == 2
        put = await at.call("PUT", "/policy", 200, json=document, headers=match)
        assert (put["source"], put["set_aside"]) == ("store", None)
    said = [each.message for each in caplog.records if each.levelno == logging.ERROR]
    assert len(said) == 1
    assert "policy 'current' of the store does not fit" in said[0]


async def test_a_file_that_is_read_again_stays_under_what_the_store_holds() -> None:
    """SIGHUP is for the file; it must not undo what operators decided over REST."""
    async with running_held_engine(1) as engine:
        base: dict[str, object] = {"replicas": [engine.url], "tiers": [{"name": "one"}]}
        async with operated(engine.url, tiers=base["tiers"]) as at:
            office, gateway = at.office, at.running.gateway
            await at.call("PUT", "/tiers/two", 200, json={"name": "two"})
            key = await at.made_key(tier="two")

            async def reread(**changes: object) -> frozenset[str]:
                settings = load_settings(config=None, environ={}, overrides=base | changes)
                changed: frozenset[str] = await office.reread(settings)
                return changed

            assert "tenants" in await reread(tenants=[{"name": "new", "weight": 5}])
            assert gateway.scheduler.policy.tenant_weight("new") == 5
            assert gateway.settings.tier_names == ("one", "two")
            assert await at.status_with(key["key"]) == 404
            key_of_file = {"tenant": "t", "tier": "three", "key_sha256": "0" * 64}
            with pytest.raises(SettingsError, match="no tier 'three'"):
                await reread(tiers=[{"name": "three"}], keys=[key_of_file])
            assert gateway.settings.tier_names == ("one", "two")
            assert gateway.scheduler.policy.tenant_weight("new") == 5
            await at.call("POST", "/tenants", 201, json={"name": "last"})
            assert gateway.scheduler.policy.tenant_weight("new") == 5


async def test_a_store_that_cannot_be_read_keeps_the_gateway_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it nobody knows who may come in: to serve all the same would let in everybody."""
    file = tmp_path / "kept.db"
    file.write_bytes(b"no database at all, and long enough to be looked at " * 100)
    overrides = {"replicas": ["http://127.0.0.1:9"], "store.url": f"sqlite:///{file}"}
    gateway = Gateway(load_settings(config=None, environ={}, overrides=overrides))
    with pytest.raises(StoreError, match="is damaged"):
        async with gateway._lifespan(FastAPI()):
            pytest.fail("it started")
    assert "cannot start without its store" in caplog.text
