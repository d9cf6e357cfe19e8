"""Batches as they are configured: what is wrong is said, and what is not wanted is not loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.batch.files import files_at
from gateway.settings import SettingsError, load_settings
from tests.support.loading import REPLICA, Loading


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{tier: lowest}", "batches.tier: there is no tier 'lowest'"),
        ("{store: 'postgres://x'}", "must be like sqlite:///batches.db, or redis://"),
        ("{lease_s: 0.1}", "batches.lease_s: 0.1 is not allowed"),
        ("{lines: 0}", "batches.lines: 0 is not allowed"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, message: str) -> None:
    """Before the gateway starts, not when a batch is made."""
    [error] = Loading(tmp_path).errors(f"{REPLICA}\nbatches: {text}\n")
    assert message in error


def test_a_password_is_not_repeated(tmp_path: Path) -> None:
    """Messages end in logs and tickets."""
    [error] = Loading(tmp_path).errors(f"{REPLICA}\nbatches: {{store: 'rediss://u:geheim@'}}\n")
    assert "batches.store" in error
    assert "geheim" not in error


def test_sizes_are_written_as_everywhere() -> None:
    """An operator writes 1GiB."""
    overrides = {"replicas": ["http://gpu0:8000"], "batches.file": "1GiB"}
    assert load_settings(config=None, environ={}, overrides=overrides).batches.file == 1 << 30


@pytest.mark.parametrize("url", ["nonsense://bucket/x", "s4://bucket"])
def test_a_place_that_nobody_knows_is_refused(url: str) -> None:
    """At the start, and with what would help."""
    with pytest.raises(ValueError, match=r"batches\.files cannot be used"):
        files_at(url)


def test_a_gateway_whose_place_for_files_is_wrong_does_not_start() -> None:
    """It would refuse each upload."""
    from gateway.app import Gateway

    overrides = {"replicas": ["http://gpu0:8000"], "batches.files": "nonsense://bucket/x"}
    with pytest.raises(SettingsError, match=r"batches\.files"):
        Gateway(load_settings(config=None, environ={}, overrides=overrides))


def test_without_batches_nothing_of_them_is_loaded() -> None:
    """Who has none pays neither memory nor the start for them."""
    code = (
        "import sys\n"
        "from gateway.app import Gateway\n"
        "from gateway.settings import load_settings\n"
        "overrides = {'replicas': ['http://gpu0:8000'], 'store.url': None}\n"
        "Gateway(load_settings(config=None, environ={}, overrides=overrides))\n"
        "found = [n for n in sys.modules if n.startswith(('gateway.batch', 'fsspec', 's3fs'))]\n"
        "assert found == [], found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
