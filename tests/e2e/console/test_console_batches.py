"""How far a batch is, in a browser and in a terminal, while it runs on emulated engines."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.console.reader import Reader, reading
from tests.e2e.console.site import ADMIN, KEYS, Site, running_site
from tests.support.batches import line

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LINES = 400
ROW = """[...document.querySelectorAll("tbody tr")].map((row) => row.innerText)
    .find((text) => /in_progress.*\\t[1-9]\\d* of 400/s.test(text))"""
MORE = """(before) => [...document.querySelectorAll("tbody td")]
    .some((cell) => Number((cell.innerText.match(/^(\\d+) of 400$/) ?? [])[1]) > before)"""
LEFT = re.compile(r"\t(\d+) of 400\t([\d.]+ (?:s|min|h))\t")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Idle engines, as quick as the emulator is."""
    with running_site(tmp_path_factory.mktemp("batches"), speed=1.0) as running:
        yield running


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that takes half a minute."""
    path = tmp_path_factory.mktemp("requests") / "requests.jsonl"
    path.write_bytes(b"".join(line(n, model="emulated", max_tokens=60) for n in range(LINES)))
    return path


def fairgate(*words: str) -> "subprocess.Popen[str]":
    """The command, as it is typed in a terminal of 100 columns."""
    command = [sys.executable, "-m", "gateway", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def progress_of(reader: Reader) -> tuple[int, str]:
    """Lines that are done, and the time left, once the page shows both."""
    found: str = reader.until(ROW)
    told = LEFT.search(found)
    while told is None:
        reader.page.wait_for_timeout(100)
        told = LEFT.search(str(reader.until(ROW)))
    return int(told[1]), told[2]


def test_a_running_batch_is_followed_in_the_console_and_in_top(
    browser: Any, axe: Path, site: Site, requests: Path
) -> None:
    """Who waits for half a million answers wants to know whether to stay up for them."""
    key = KEYS["acme"][0]
    submit = fairgate("batch", "submit", str(requests), "--gateway", site.url, "--key", key)
    with reading(browser, site.url, axe=axe) as reader:
        reader.enter(ADMIN)
        reader.see("Batches")
        first, left = progress_of(reader)
        assert 0 < first < LINES
        assert left
        reader.until(MORE, first)
        assert reader.faults() == []
        top = fairgate("top", "--once", "--json", "--gateway", site.url, "--admin-key", ADMIN)
        (batch,) = json.loads(top.communicate(timeout=60)[0])["batches"]
        assert (batch["status"], batch["total"]) == ("in_progress", LINES)
        assert first < batch["completed"] < LINES
        assert batch["left_s"] > 0
        said, told = submit.communicate(timeout=200)
        assert submit.returncode == 0, told
        reader.page.wait_for_selector("tbody tr:has-text('completed')")
        assert reader.errors == []
    assert said.startswith("batch_")
    assert f"completed: {LINES} of {LINES} answered, 0 failed" in told
    answers = requests.with_suffix(".output.jsonl").read_text().splitlines()
    assert len({json.loads(each)["custom_id"] for each in answers}) == LINES


def test_a_console_without_a_batch_says_so(browser: Any, axe: Path, tmp_path: Path) -> None:
    """An empty table would look like one that is broken."""
    with running_site(tmp_path, speed=1.0) as site, reading(browser, site.url, axe=axe) as reader:
        reader.enter(ADMIN)
        reader.see("Batches")
        reader.page.wait_for_selector("text=No batch was made yet.")
        with httpx.Client(base_url=site.url) as http:
            assert http.get("/admin/v1/batches").status_code == 403
        assert (reader.faults(), reader.errors) == ([], [])
