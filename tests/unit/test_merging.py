"""Metrics of several processes as those of one: sums never fall, gauges mean what they say."""

import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway
from gateway.settings import load_settings
from gateway.telemetry.last_words import LastWords, add_to_gone
from gateway.telemetry.merging import GAUGES, SUMMED, merged, parsed, sums_of
from gateway.tenancy.store.memory import MemoryStore

ONE = """\
# HELP fairgate_tokens_total Tokens.
# TYPE fairgate_tokens_total counter
fairgate_tokens_total{kind="output",tier="a b"} 3.0
# HELP fairgate_wait_seconds Waits.
# TYPE fairgate_wait_seconds histogram
fairgate_wait_seconds_bucket{le="0.1"} 1.0
fairgate_wait_seconds_bucket{le="+Inf"} 2.0
fairgate_wait_seconds_count 2.0
fairgate_wait_seconds_sum 5.25
# HELP fairgate_requests_inside Inside.
# TYPE fairgate_requests_inside gauge
fairgate_requests_inside 7.0
# HELP fairgate_store_up Store.
# TYPE fairgate_store_up gauge
fairgate_store_up 1.0
"""
OTHER = """\
# HELP fairgate_tokens_total Tokens.
# TYPE fairgate_tokens_total counter
fairgate_tokens_total{kind="output",tier="a b"} 4.0
fairgate_tokens_total{kind="prompt",tier="a b"} 1e+06
# HELP fairgate_requests_inside Inside.
# TYPE fairgate_requests_inside gauge
fairgate_requests_inside 5.0
# HELP fairgate_store_up Store.
# TYPE fairgate_store_up gauge
fairgate_store_up 0.0
"""


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples, as Prometheus' own parser reads them."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_sums_are_added_and_gauges_follow_their_rule() -> None:
    """A scrape that reaches one worker of many must not tell of that one alone."""
    found = values(merged((ONE, OTHER)))
    output = frozenset({("kind", "output"), ("tier", "a b")})
    assert found["fairgate_tokens_total", output] == 7.0
    assert (
        found["fairgate_tokens_total", frozenset({("kind", "prompt"), ("tier", "a b")})] == 1000000
    )
    assert found["fairgate_wait_seconds_bucket", frozenset({("le", "+Inf")})] == 2.0
    assert found["fairgate_wait_seconds_sum", frozenset()] == 5.25
    assert found["fairgate_requests_inside", frozenset()] == 12.0
    assert found["fairgate_store_up", frozenset()] == 0.0


def test_of_the_gone_only_what_adds_up_counts() -> None:
    """A process that is no more has nobody inside, but what it served was served."""
    found = values(merged((ONE,), gone=(OTHER, "")))
    output = frozenset({("kind", "output"), ("tier", "a b")})
    assert found["fairgate_tokens_total", output] == 7.0
    assert found["fairgate_requests_inside", frozenset()] == 7.0
    assert found["fairgate_store_up", frozenset()] == 1.0


def test_one_text_stays_as_it_is() -> None:
    """Merging is no translation: help texts, order and values are those of the process."""
    assert merged((ONE,)) == ONE
    assert values(sums_of(ONE)).keys() == {
        key for key in values(ONE) if "tokens" in key[0] or "wait" in key[0]
    }


async def test_every_gauge_that_a_gateway_tells_says_what_it_means_for_all() -> None:
    """An undeclared one would be told as a maximum, whatever it counts."""
    values = {"replicas": ["http://127.0.0.1:9"], "redis.url": "redis://127.0.0.1:9/0"}
    settings = load_settings(config=None, environ={}, overrides=values)
    gateway = Gateway(settings, store=MemoryStore())
    families = parsed(gateway.metrics.text().decode())
    assert len(families) > 20
    gauges = {family.name for family in families if family.kind not in SUMMED}
    assert gauges <= GAUGES.keys()
    own = {"fairgate_workers", "fairgate_workers_silent"}
    assert GAUGES.keys() - gauges - own == set(), "and none is declared that is not there"


def kept(folder: Path, monkeypatch: pytest.MonkeyPatch, pid: int, text: str) -> LastWords:
    """A process `pid` that wrote down `text`."""
    monkeypatch.setattr(os, "getpid", lambda: pid)
    words = LastWords(folder)
    words.keep(text)
    return words


def tokens(texts: list[str]) -> float:
    """The sum of all output tokens."""
    output = frozenset({("kind", "output"), ("tier", "a b")})
    return values(merged((), gone=texts)).get(("fairgate_tokens_total", output), 0.0)


def test_no_sum_falls_when_a_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus takes a sum that falls for a restart, and adds all of it again."""
    kept(tmp_path, monkeypatch, 11, ONE)
    kept(tmp_path, monkeypatch, 12, OTHER)
    me = kept(tmp_path, monkeypatch, 13, ONE)
    assert tokens(me.known().without([])) == 7.0
    assert tokens(me.known().without([12])) == 3.0
    for pid, left in ((11, 7.0), (12, 7.0)):
        add_to_gone(tmp_path, pid)
        add_to_gone(tmp_path, pid)
        assert tokens(me.known().without([])) == left
    assert [path.name.partition("-")[0] for path in tmp_path.glob("*-*")] == ["13"]


def test_words_that_are_in_the_sum_already_are_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between adding a file and removing it, or one whose removal failed."""
    kept(tmp_path, monkeypatch, 11, ONE)
    (path,) = tmp_path.glob("11-*")
    text = path.read_text()
    add_to_gone(tmp_path, 11)
    path.write_text(text)
    me = kept(tmp_path, monkeypatch, 13, ONE)
    assert tokens(me.known().without([])) == 3.0


def test_a_number_that_is_used_again_is_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process numbers come round."""
    kept(tmp_path, monkeypatch, 11, ONE)
    add_to_gone(tmp_path, 11)
    kept(tmp_path, monkeypatch, 11, OTHER)
    me = kept(tmp_path, monkeypatch, 13, ONE)
    assert tokens(me.known().without([])) == 7.0
