"""Where recordings of real engines lie that are not part of this repository."""

from pathlib import Path

import pytest

_SHARED = Path(__file__).resolve().parents[3] / "shared"


def shared_path(*parts: str) -> Path:
    """The path of a recording beside the repository; skips the test where there are none."""
    if not _SHARED.is_dir():
        pytest.skip("no recordings beside the repository")
    return _SHARED.joinpath(*parts)
