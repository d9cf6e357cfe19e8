"""What every test leaves behind is let go, so that the last of thousands runs like the first."""

import gc
import re
from collections.abc import Generator

import pytest
from fastapi.dependencies import models as fastapi_models

from gateway.core import scheduler

IS_COMPILED = not str(scheduler.__file__).endswith(".py")
DOUBLED = re.compile(
    r"object expected; got tests\.|cannot inherit from compiled|attribute '\w+' is read-only"
)
"""Errors in which machine code refuses a part that a test puts in the place of its own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that cannot be of machine code are not run on it."""
    if IS_COMPILED:
        for item in items:
            if item.get_closest_marker("sources"):
                item.add_marker(pytest.mark.skip(reason="of the sources"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test whose double is refused by machine code says nothing about that."""
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    if IS_COMPILED and report.failed and DOUBLED.search(str(error)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"no double: {error}")
    return report


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
