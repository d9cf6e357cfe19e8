"""The `openai` package for Node, whose tests stand in `node/`; needs `node` and `npm`."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.e2e.clients.site import KEY, MODEL, Site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SOURCES = Path(__file__).parent / "node"
FILES = ("package.json", "package-lock.json", "openai.test.mjs")


@pytest.fixture(scope="module")
def installed() -> Path:
    """A folder outside the repository with the packages of the lock file and the tests."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            pytest.skip(f"SKIPPED: no `{command}` here (apt-get install nodejs npm)")
    lock = (SOURCES / "package-lock.json").read_bytes()
    name = f"fairgate-node-{hashlib.sha256(lock).hexdigest()[:12]}"
    folder = Path(os.environ.get("FAIRGATE_NODE_DIR", Path(tempfile.gettempdir()) / name))
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        shutil.copy(SOURCES / file, folder / file)
    if not (folder / "node_modules" / "openai").is_dir():
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=folder, check=True)
    return folder


def test_the_package_for_node(installed: Path, site: Site, narrow: Site) -> None:
    """Half of all applications are written in it, and its stream decoder is another one."""
    environment = {
        **os.environ, "SITE": site.url, "ENGINE": site.engine, "NARROW": narrow.url, "KEY": KEY,
        "MODEL": MODEL,
    }  # fmt: skip
    done = subprocess.run(
        ["node", "--test", "--test-concurrency=1", "openai.test.mjs"],
        cwd=installed,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    site.fault()
    assert done.returncode == 0, done.stdout
    assert "fail 0" in done.stdout, done.stdout
