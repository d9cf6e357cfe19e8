"""Ten thousand requests wait, and the console is as quick as with ten."""

import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.console.reader import reading
from tests.e2e.console.site import ADMIN, SLOTS, Crowd, running_site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WAITING = 10_000
PAINT_MS_MAX = 1_000
UPDATE_MS_MAX = 100
LOADS = 3
"""The best counts: others use this machine as well."""
WATCHED_S = 20.0
ARRIVED_S_MAX = 120.0
FIGURES = """() => {
    const waiting = document.querySelector("[data-testid=waiting]");
    return waiting && document.querySelectorAll("tbody tr").length >= 7 ? performance.now() : false;
}"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
UPDATES = "performance.getEntriesByName('console-update').map((each) => each.duration)"


def test_ten_thousand_wait_and_the_page_is_quick(
    browser: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The console is opened when the line is long, and must not be what makes it longer."""
    with running_site(tmp_path, speed=0.02, patience_s=3_600) as site:
        crowd = Crowd(site)
        crowd.come(WAITING + 2 * SLOTS)
        deadline = time.monotonic() + ARRIVED_S_MAX
        while (seen := site.ask("GET", "/overview"))["waiting"] < WAITING - 4 * SLOTS:
            assert time.monotonic() < deadline, seen["tiers"]
            time.sleep(0.5)
        with reading(browser, site.url) as reader:
            reader.enter(ADMIN)
            reader.until(FIGURES)
            loads = []
            for _ in range(LOADS):
                reader.page.reload()
                figures_ms = reader.until(FIGURES)
                loads.append((reader.page.evaluate(PAINT), figures_ms))
            reader.page.wait_for_timeout(WATCHED_S * 1_000)
            updates = reader.page.evaluate(UPDATES)
            for view in ("Replicas", "Requests", "Policy", "Scaling"):
                reader.see(view)
            assert reader.errors == []
        began_at = time.monotonic()
        answer = site.ask("GET", "/overview")
        overview_ms = (time.monotonic() - began_at) * 1e3
        crowd.leave()
    paint_ms, figures_ms = min(each[0] for each in loads), min(each[1] for each in loads)
    update_ms = statistics.median(updates)
    with capsys.disabled():
        print(  # noqa: T201 - the figures are the point of the test
            f"\n{seen['waiting']} waiting: first paint {paint_ms:.0f} ms, figures {figures_ms:.0f} "
            f"ms, update {update_ms:.0f} ms (most {max(updates):.0f} of {len(updates)}), "
            f"overview {overview_ms:.0f} ms"
        )
    assert answer["waiting"] >= WAITING - 200
    assert paint_ms < PAINT_MS_MAX
    assert figures_ms < PAINT_MS_MAX
    assert len(updates) >= 5
    assert update_ms < UPDATE_MS_MAX
