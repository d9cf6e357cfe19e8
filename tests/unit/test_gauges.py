"""What a scrape tells of gates is what the scheduler goes by, and a scrape leaves it as it was."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from gateway.core.gate import Closed
from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.core.snapshot import snapshot
from gateway.telemetry.gauges import SchedulerGauges
from tests.support.script import Script

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "observability.md"
OF_ONE_REQUEST = {Closed.PREFILL, Closed.KV, Closed.ELSEWHERE}
"""What shuts no gate, but keeps out a request for its own sake."""
POLICY = Policy(tiers=DEFAULT_TIERS, warm_up_s=0.0, recall=False, hold_s=3_600.0)
Told = dict[tuple[str, ...], float]


def told(script: Script, name: str, *labels: str) -> Told:
    """One gauge at this moment, by the values of its labels."""
    registry = CollectorRegistry()
    registry.register(
        SchedulerGauges(script.scheduler, lambda: script.now, "1.2.3", shown=frozenset)
    )
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"fairgate_{name}"
    }


def busy() -> Script:
    """One replica with as much as it takes, and more that waits."""
    script = Script(POLICY).replica("r", slots=4)
    for number in range(9):
        script.arrive(f"a{number}", tier=number % 4)
        script.start_all()
    return script


def test_as_many_gates_are_told_open_as_the_scheduler_has_open() -> None:
    """A panel that says open while nothing goes there sends people to look in the wrong place."""
    for script in (Script(POLICY).replica("r", slots=4), busy()):
        opened = told(script, "replica_gate_open", "replica", "tier")
        (pool,) = script.scheduler.pools
        known = pool.open_tiers(script.scheduler.replicas["r"], script.now)
        assert [value for _, value in sorted(opened.items())].count(1.0) == known
        shut = told(script, "replica_gate_closed", "replica", "tier", "reason")
        assert len(opened) - known == len(shut)


def test_a_look_changes_nothing() -> None:
    """Whoever scrapes must not make the gateway decide otherwise, be it after a long silence."""
    script = busy()
    script.now += 60.0
    before = snapshot(script.scheduler, script.now)
    told(script, "replica_gate_open", "replica", "tier")
    assert snapshot(script.scheduler, script.now) == before


def test_every_reason_that_can_be_told_is_explained_and_no_other() -> None:
    """An operator who reads a word that stands nowhere is left to guess."""
    text = DOCUMENT.read_text().partition("\n### Gates\n")[2].partition("\n## ")[0]
    words = {
        word
        for cell in re.findall(r"^\| ([`\w, ]+) \|", text, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", cell)
    }
    possible = {each.value for each in Closed if each not in OF_ONE_REQUEST}
    assert words == possible - {Closed.UNUSABLE} | {"draining", "lost"}
