"""Addresses of stores: which there are, and what is said of the others."""

from pathlib import Path

import pytest

from gateway.tenancy.store.memory import MemoryStore
from gateway.tenancy.store.opening import checked_url, is_shared, store_of
from gateway.tenancy.store.redis import RedisStore
from gateway.tenancy.store.sqlite import SqliteStore
from tests.support.stores import DEED, put


@pytest.mark.parametrize("url", [None, "memory:", "memory://"])
async def test_a_store_in_memory_is_one_s_own(url: str | None) -> None:
    """Two gateways of one test must not meet in it."""
    one, other = store_of(url), store_of(url)
    assert isinstance(one, MemoryStore)
    await one.commit([put("a", {})], DEED)
    assert await other.revision() == 0
    assert not is_shared(url)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("fairgate.db", "sqlite:///fairgate.db"),
        ("state/fair gate.db", "sqlite:///state/fair%20gate.db"),
    ],
)
async def test_a_relative_path_starts_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, url: str
) -> None:
    """Where the operator looks for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    store = store_of(url)
    await store.commit([put("a", {})], DEED)
    await store.close()
    assert (tmp_path / path).is_file()
    assert is_shared(url)


async def test_four_slashes_begin_an_absolute_path(tmp_path: Path) -> None:
    """As in the URLs of other programs."""
    store = store_of(f"sqlite:///{tmp_path}/a.db")
    assert f"sqlite:///{tmp_path}/a.db".startswith("sqlite:////")
    assert isinstance(store, SqliteStore)
    await store.commit([put("a", {})], DEED)
    await store.close()
    assert (tmp_path / "a.db").is_file()


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:6379/0", "redis://h", "rediss://user:s3cret@h:6380/3", "redis://[::1]:1/0",
        "redis://h/0?prefix=staging.2",
    ],
)  # fmt: skip
async def test_redis_may_be_anywhere_and_asks_nobody_yet(url: str) -> None:
    """A gateway must be able to say what it is configured with before it connects."""
    store = store_of(url)
    assert isinstance(store, RedisStore)
    assert checked_url(url) == url
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "", "fairgate.db", "/fairgate.db", "sqlite:", "sqlite://fairgate.db", "sqlite:///",
        "sqlite:///s3cret.db?mode=ro", "postgres://u:s3cret@h/db", "redis://", "redis:///0",
        "redis://h:s3cret/0", "redis://h/s3cret", "redis://h:99999/0", "redis://h:0/0",
        "memory:s3cret", "mysql", "redis://[s3cret/0",
    ],
)  # fmt: skip
def test_other_addresses_are_refused_with_those_there_are(url: str) -> None:
    """Whoever mistypes one must not lose what is changed at run time, nor show the password."""
    for judge in (checked_url, store_of):
        with pytest.raises(ValueError, match=r"sqlite:///fairgate\.db.*redis://.*memory:") as error:
            judge(url)
        assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("query", ["db=3", "prefix=", "prefix={x}", "prefix=a&x=1", "x"])
def test_other_options_of_redis_are_refused(query: str) -> None:
    """An option that is silently ignored, or one that splits the keys of a cluster."""
    with pytest.raises(ValueError, match=r"\?prefix="):
        store_of(f"redis://h/0?{query}")
