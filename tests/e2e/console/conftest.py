"""A headless Chromium before a busy gateway; what is missing on this machine is skipped aloud."""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.console.reader import Reader, reading
from tests.e2e.console.site import ADMIN, Crowd, Site, running_site

CHROMIUM = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
SOURCES = Path(__file__).parent / "node"
SPEED = 0.25
CROWD = 900


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium of the system: none is downloaded."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="SKIPPED: pip install playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("SKIPPED: no `chromium` here (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(CHROMIUM))
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def axe() -> Path:
    """The judge of accessibility, in a folder outside the repository."""
    if shutil.which("npm") is None:
        pytest.skip("SKIPPED: no `npm` here (apt-get install nodejs npm)")
    lock = (SOURCES / "package-lock.json").read_bytes()
    name = f"fairgate-axe-{hashlib.sha256(lock).hexdigest()[:12]}"
    folder = Path(tempfile.gettempdir()) / name
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("package.json", "package-lock.json"):
            shutil.copy(SOURCES / file, folder / file)
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=folder, check=True)
    return script


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Some run, hundreds wait, of three tenants."""
    with running_site(tmp_path_factory.mktemp("console"), speed=SPEED) as running:
        crowd = Crowd(running)
        crowd.come(CROWD)
        yield running
        crowd.leave()


@pytest.fixture
def reader(browser: Any, axe: Path, site: Site) -> Iterator[Reader]:
    """An operator who has come in; that nothing went wrong is looked at in the end."""
    with reading(browser, site.url, axe=axe) as reader:
        reader.enter(ADMIN)
        yield reader
    assert reader.errors == []
