"""What `fairgate check --live` says of the gateway's own side."""

import os
import sqlite3
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from gateway.check import Finding
from gateway.doctor.machine import of_descriptors, of_exposure, of_proxy, of_store
from gateway.doctor.redis import RedisFacts, judged
from gateway.doctor.running import of_running
from gateway.settings import Settings, load_settings
from tests.support.pictures import Answering, overview, replica

Usage = namedtuple("Usage", "total used free")  # as shutil has it


def settings(**overrides: object) -> Settings:
    """Settings with one replica, and what the test adds."""
    given = {"replicas": ["http://gpu0:8000"], **overrides}
    return load_settings(config=None, environ={}, overrides=given)


def levels(found: Any) -> list[tuple[str, str]]:
    """(level, what) of each; all that are not fine have a reason and a cure."""
    told: list[Finding] = list(found)
    for each in told:
        assert each.level == "ok" or (each.why and each.hint), each
    return [(each.level, each.what) for each in told]


def test_too_few_open_files_for_what_may_wait_is_a_warning() -> None:
    """The bound on waiting is a promise that a limit of 1024 files breaks."""
    ((level, what),) = levels(of_descriptors(settings(), 1_024, 20))
    assert level == "warning"
    assert "10000 may wait" in what
    (only,) = of_descriptors(settings(), 1_024, 20)
    assert only.hint is not None
    needed = int(only.hint.split(" to ")[1].split()[0])
    assert levels(of_descriptors(settings(), needed, 20))[0][0] == "ok"
    assert levels(of_descriptors(settings(**{"bounds.connections": 500}), 1_024, 20))[0][0] == "ok"


def test_a_store_that_can_be_written_is_fine_and_stays_as_it_was(tmp_path: Path) -> None:
    """An examination that makes the file would hide that the gateway could not."""
    path = tmp_path / "fairgate.db"
    here = settings(**{"store.url": f"sqlite:///{path}"})
    assert levels(of_store(here)) == [("ok", f"{path} can be written to")]
    assert not path.exists()
    sqlite3.connect(path).close()
    assert levels(of_store(here))[0][0] == "ok"


def test_a_store_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is found out when the first key is to be revoked."""
    path = tmp_path / "fairgate.db"
    here = settings(**{"store.url": f"sqlite:///{path}"})
    path.write_text("no database, " * 100)
    assert levels(of_store(here))[0][0] == "error"
    gone = settings(**{"store.url": f"sqlite:///{tmp_path}/none/fairgate.db"})
    assert levels(of_store(gone))[0][0] == "error"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written to" in levels(of_store(here))[0][1]


def test_a_full_disk_and_no_store_at_all_are_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are noticed by the change that is lost."""
    here = settings(**{"store.url": f"sqlite:///{tmp_path}/fairgate.db"})
    monkeypatch.setattr("gateway.doctor.machine.disk_usage", lambda _: Usage(9, 8, 1 << 20))
    assert levels(of_store(here))[0][0] == "warning"
    assert levels(of_store(settings(**{"store.url": "memory:"})))[0][0] == "warning"


@pytest.mark.parametrize(
    ("timeout_s", "level"), [(5.0, "error"), (60.0, "warning"), (7_200.0, "ok")]
)
def test_a_proxy_must_be_more_patient_than_who_waits(timeout_s: float, level: str) -> None:
    """nginx gives up after 60 s by itself, in the middle of a queue."""
    assert levels(of_proxy(settings(), timeout_s))[0][0] == level
    assert levels(of_proxy(settings(), None)) == []


def test_a_gateway_for_others_without_tls_is_noted() -> None:
    """Keys that went over a network in clear are everybody's."""
    key = {"tenant": "a", "key_sha256": "0" * 64}
    assert levels(of_exposure(settings())) == []
    there = settings(**{"listen.host": "0.0.0.0", "keys": [key]})  # noqa: S104  # the case itself
    assert levels(of_exposure(there))[0][0] == "note"


@pytest.mark.parametrize(
    ("info", "fields", "told"),
    [
        ({}, {}, []),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 1}, {}, ["error"]),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 0}, {}, ["warning"]),
        ({"maxmemory_policy": "volatile-lru", "maxmemory": 1}, {}, ["warning"]),
        ({"aof_enabled": 0}, {}, ["warning"]),
        ({"aof_last_write_status": "err"}, {}, ["error"]),
        ({}, {"ping_s": 0.2}, ["warning"]),
        ({}, {"clock_ahead_s": -30.0}, ["warning"]),
        ({}, {"can_write": False}, ["error"]),
    ],
)
def test_a_redis_is_judged_by_what_it_may_lose(
    info: dict[str, Any], fields: dict[str, Any], told: list[str]
) -> None:
    """What several gateways agreed on must not be evicted, late, or gone with a crash."""
    facts = RedisFacts(
        info={"redis_version": "7.2", "aof_enabled": 1, **info},
        **{"ping_s": 0.001, "clock_ahead_s": 0.0, **fields},
    )
    found = levels(judged(facts, keeps=True, where="store", is_tls=False))
    assert [level for level, _ in found] == ["ok", *told]


def test_a_running_gateway_tells_who_else_uses_its_engines() -> None:
    """Load that came past the gateway is why fair shares do not add up."""
    busy = replica(
        "gpu0",
        load={"foreign": 3},
        circuit={"state": "open", "reason": "3 failures", "open_s": 1.0},
        metrics={"is_stale": True},
    )
    busy["is_drained"] = True
    name = {"name": "dns:a:1", "live": None, "is_drained": False}
    gateway = Answering(overview=overview(version="0.9.0"), replicas={"data": [busy, name]})
    found = levels(of_running(gateway, "http://g", "1.0.0", is_wanted=True))
    assert [level for level, _ in found] == ["ok", "note", "warning", "warning", "warning", "note"]
    assert "3 requests there did not come through the gateway" in found[2][1]
    gateway.is_gone = True
    assert levels(of_running(gateway, "http://g", "1.0.0", is_wanted=True))[0][0] == "error"
    assert levels(of_running(gateway, "http://g", "1.0.0", is_wanted=False))[0][0] == "note"
