"""What every test leaves behind is let go, so that the last of thousands runs like the first."""

import gc

import pytest
from fastapi.dependencies import models as fastapi_models


def pytest_collection_finish() -> None:
    """Thousands of tests are objects too: without them a look for garbage takes milliseconds."""
    _pass_over_what_is_kept()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """FastAPI remembers the last 4,096 routes of any application, and with them whole gateways."""
    for each in vars(fastapi_models).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()
    if nextitem is None or nextitem.path != item.path:
        _pass_over_what_is_kept()  # a module's own caches


def _pass_over_what_is_kept() -> None:
    gc.collect()
    gc.freeze()
