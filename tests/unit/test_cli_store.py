"""`fairgate store` as it is typed: what it writes, what it reads, and what it refuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.tenancy.store.opening import store_of
from gateway.tenancy.store.port import Answer, Deed, Store
from tests.support.stores import DEED, all_entries, bodies, drop, put

HASHES = [{"sha256": "0" * 64, "until": None}]
SECRET = "fg-abcdefabcdef-secret"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of the test's own, and no settings of the developer's."""
    monkeypatch.delenv("FAIRGATE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with three records and a history."""
    address = f"sqlite:///{tmp_path}/fairgate.db"

    async def fill(store: Store) -> None:
        answer = Answer(fingerprint="f", status=201, body=SECRET.encode())
        await store.commit([put("k1", {"hashes": HASHES})], DEED, answer=("once", answer))
        await store.commit([put("acme", {"weight": 1}, kind="tenant"), put("k2", {})], DEED)
        await store.commit([put("acme", {"weight": 2}, kind="tenant")], DEED)
        await store.spend({("acme", "2026-11"): 5})

    within(address, fill)
    return address


def within(address: str, what: Any) -> Any:
    """The result of `what(store)` with the store at `address`."""

    async def run() -> Any:
        store = store_of(address)
        try:
            return await what(store)
        finally:
            await store.close()

    return asyncio.run(run())


def run(*words: str, given: bytes = b"") -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, ["store", *words], input=given)


def lines_of(result: Result) -> list[Any]:
    """What an export wrote."""
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_an_export_has_all_records_and_no_secret(url: str) -> None:
    """Backups lie about: what is in them must open no door."""
    result = run("export", "--url", url)
    head, *records, end = lines_of(result)
    assert head == {"fairgate_store": 1, "revision": 3}
    assert [(each["record"]["kind"], each["record"]["id"]) for each in records] == [
        ("key", "k1"), ("key", "k2"), ("tenant", "acme"),
    ]  # fmt: skip
    assert records[0]["record"]["body"] == {"hashes": HASHES}
    assert end == {"end": {"records": 3, "audit": 0}}
    assert SECRET not in run("export", "--audit", "--url", url).stdout
    assert "3 lines" in result.stderr


def test_an_export_with_its_audit_tells_who_changed_what(url: str) -> None:
    """An auditor without access to the gateway."""
    lines = lines_of(run("export", "--audit", "--url", url))
    entries = [each["audit"] for each in lines if "audit" in each]
    assert [(each["sequence"], each["revision"]) for each in entries] == [
        (4, 3), (3, 2), (2, 2), (1, 1),
    ]  # fmt: skip
    assert entries[0]["before"] == {"weight": 1}
    assert entries[0]["after"] == {"weight": 2}
    assert entries[0]["who"] == "ann"
    assert lines[-1] == {"end": {"records": 3, "audit": 4}}


@pytest.mark.parametrize("options", [[], ["--audit"]])
def test_an_import_makes_the_same_records_in_one_commit(
    url: str, tmp_path: Path, options: list[str]
) -> None:
    """Whoever moves from a file to Redis, or puts a backup in place."""
    saved = tmp_path / "saved.jsonl"
    saved.write_bytes(run("export", *options, "--url", url).stdout_bytes)
    other = f"sqlite:///{tmp_path}/other.db"
    result = run("import", str(saved), "--url", other)
    assert result.exit_code == 0, result.stderr
    assert "3 records imported, 0 others removed" in result.stderr
    assert within(other, bodies) == within(url, bodies)
    assert within(other, lambda store: store.revision()) == 1
    [deed] = {each.deed for each in within(other, lambda store: store.audit())}
    assert (deed.who, deed.action) == ("command line", "store.import")


def test_a_store_with_records_is_replaced_only_when_that_is_said(url: str, tmp_path: Path) -> None:
    """A command typed into the wrong terminal must not take the keys of a running gateway."""
    saved = run("export", "--url", url).stdout_bytes

    async def change(store: Store) -> None:
        await store.commit([put("k1", {"x": 1}), put("k3", {}), drop("k2")], DEED)

    within(url, change)
    result = run("import", "-", "--url", url, given=saved)
    assert result.exit_code == 1
    assert "has 3 records" in result.stderr
    assert within(url, lambda store: store.revision()) == 4
    result = run("import", "-", "--replace", "--url", url, given=saved)
    assert "3 records imported, 1 others removed" in result.stderr
    assert within(url, bodies) == {"k1": {"hashes": HASHES}, "k2": {}, "acme": {"weight": 2}}
    assert ("k3", {}, None) in within(url, all_entries)
    assert within(url, lambda store: store.revision()) == 5


HEAD = '{"fairgate_store": 1, "revision": 1}'
RECORD = '{"record": {"kind": "key", "id": "a", "version": 1, "body": {}}}'
END = '{"end": {"records": 1, "audit": 0}}'


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], "line 0: the file is not whole"),
        ([RECORD, END], "line 1: this is no export"),
        (['{"fairgate_store": 2}', RECORD, END], "line 1: schema 2 is of a newer fairgate"),
        (["keys:"], "line 1: no JSON"),
        ([HEAD, "[1]"], "line 2: no JSON object"),
        ([HEAD, RECORD], "line 2: the file is not whole"),
        ([HEAD, END], "line 2: the file is not whole"),
        ([HEAD, RECORD, END, RECORD], "line 4: there is something after the end"),
        ([HEAD, RECORD, RECORD, END], "line 3: key 'a' is there twice"),
        ([HEAD, RECORD.replace("key", "door"), END], "line 2: there is no kind 'door'"),
        ([HEAD, RECORD.replace("{}", "[]"), END], "line 2: neither a record nor"),
        ([HEAD, RECORD.replace("{}", '{"x": "%s"}' % ("y" * (1 << 20))), END], "key 'a' has 104"),
    ],
)
def test_what_is_no_whole_export_is_refused_with_its_line(
    tmp_path: Path, lines: list[str], fault: str
) -> None:
    """A backup cut short by a full disk, read in as if it were all there was."""
    result = run("import", "-", "--url", "sqlite:///new.db", given="\n".join(lines).encode())
    assert result.exit_code == 1
    assert fault in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_store_is_that_of_the_settings_whatever_else_is_wrong_there(
    url: str, tmp_path: Path
) -> None:
    """Whoever rescues a store has other worries than a variable of an engine that is not set."""
    config = tmp_path / "fairgate.yaml"
    config.write_text(
        f"store: {{url: '{url}'}}\nreplicas: [{{url: http://h, api_key_env: NONE}}]\n"
    )
    assert len(lines_of(run("export", "--config", str(config)))) == 5
    assert len(lines_of(run("export"))) == 5, "the default is fairgate.db in the working directory"
    config.write_text("store: {url: 'mysql://s3cret'}\n")
    result = run("export", "--config", str(config))
    assert result.exit_code == 2
    assert "fairgate.yaml:1: store.url: must be like" in result.stderr
    assert "s3cret" not in result.stderr


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["export", "--url", "memory:"], "nobody's but its gateway's"),
        (["export", "--url", "mysql://x"], "must be like"),
        (["export", "--url", "redis://127.0.0.1:1/0"], "127.0.0.1:1"),
        (["export", "--url", "sqlite:///none/a.db"], "no folder"),
        (["import", "none.jsonl", "--url", "sqlite:///a.db"], "none.jsonl"),
    ],
)
def test_what_cannot_be_reached_is_told_in_a_line(words: list[str], fault: str) -> None:
    """A traceback tells an operator nothing, and exit status 0 tells a script the wrong thing."""
    result = run(*words)
    assert result.exit_code == 1
    assert fault in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_deed_of_the_command_line_has_its_time(url: str, tmp_path: Path) -> None:
    """The audit is read by time."""
    saved = run("export", "--url", url).stdout_bytes
    run("import", "-", "--replace", "--url", url, given=saved)
    deed: Deed = within(url, lambda store: store.audit())[0].deed
    assert deed.at > 1_700_000_000
