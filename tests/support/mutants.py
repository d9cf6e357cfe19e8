"""Changes of the core that no test notices: mutmut's mutants, each against the tests of its lines.

`python -m tests.support.mutants [module ...]` prints a table and the survivors; mutmut must be
installed beside the tests (`pip install mutmut`). mutmut's own runner starts one process of tests
for each mutant. Here the tests are collected once, and every mutant is planted in a fork.
"""

import gc
import importlib
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.support.catching import QUIET
from tests.support.mutating import Mutant, mutants
from tests.support.planting import CORE, PREFIX

TESTS = Path(__file__).parent.parent
QUICK_S, THOROUGH_S = 2.5, 60.0
"""Tests of one mutant, those of its module first, then the shortest; again for a survivor."""
CPU_S = 90
"""What takes longer has become an endless loop, and is noticed."""
MEMORY_BYTES = 3 << 30
PROPERTIES = ("machine", "snapshot_property")
"""Long days of everything, and what a restart must keep."""
NOT_NOTICED = 255


def plant(mutant: Mutant) -> None:
    """Give the function that runs the code of its mutant; whoever imported it has that, too."""
    module = sys.modules[PREFIX + mutant.module]
    changed = ModuleType(module.__name__)
    changed.__dict__["__file__"] = module.__file__
    exec(compile(mutant.source, str(module.__file__), "exec"), changed.__dict__)  # noqa: S102  # our own source
    function, new = _live(module, mutant.function), _live(changed, mutant.function)
    function.__code__ = new.__code__
    function.__defaults__, function.__kwdefaults__ = new.__defaults__, new.__kwdefaults__


def _live(module: ModuleType, name: str) -> FunctionType:
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    found = getattr(found, "fget", found)  # a property
    function = getattr(found, "__func__", found)  # a class method
    assert isinstance(function, FunctionType), name
    return function


class Survey:
    """Takes pytest's place once the tests are collected: which mutants does none of them fail?"""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._items: Sequence[pytest.Item] = ()
        self._costs_s: list[float] = []
        self._runs: dict[str, Mapping[int, list[str]]] = {}
        """By module and line, the numbers of the tests that run it."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure each test, then try each mutant."""
        self._items = session.items
        self._measure()
        gc.freeze()
        survivors = []
        print("| module | mutants | killed | survived |\n|---|---|---|---|")  # noqa: T201  # a command
        for module in self._modules:
            tried = [(mutant, self._is_noticed(mutant)) for mutant in mutants(module)]
            left = [mutant for mutant, is_noticed in tried if not is_noticed]
            survivors += left
            print(f"| {module} | {len(tried)} | {len(tried) - len(left)} | {len(left)} |")  # noqa: T201  # same
        for mutant in survivors:
            print(f"{mutant.module}.{mutant.function}: {mutant.change}")  # noqa: T201  # same
        return True

    def _measure(self) -> None:
        coverage = importlib.import_module("coverage").Coverage(
            data_file=None, config_file=False, include=[str(CORE / "*")]
        )
        coverage.start()
        for number, item in enumerate(self._items):
            coverage.switch_context(str(number))
            began = time.process_time()
            assert not _fails(item), f"{item.nodeid} fails without a mutant"
            self._costs_s.append(time.process_time() - began)
        coverage.stop()
        found = coverage.get_data()
        for path in found.measured_files():
            self._runs[Path(path).stem] = found.contexts_by_lineno(path)

    def _is_noticed(self, mutant: Mutant) -> bool:
        runs = self._runs.get(mutant.module, {})
        numbers = {int(each) for line in mutant.lines for each in runs.get(line, ()) if each}
        own = f"test_core_{mutant.module}"
        ranked = [
            (own not in self._items[each].nodeid, self._costs_s[each], each) for each in numbers
        ]
        done: set[int] = set()
        for limit_s in (QUICK_S, THOROUGH_S):
            chosen, left_s = [], limit_s
            for _, cost_s, number in sorted(ranked):
                if number not in done and cost_s <= left_s:
                    left_s -= cost_s
                    chosen.append(number)
            if _fail_one(mutant, [self._items[each] for each in chosen]):
                return True
            done.update(chosen)
        return False


def _fail_one(mutant: Mutant, tests: Sequence[pytest.Item]) -> bool:
    """Whether any of them notices it, in a process of its own."""
    child = os.fork()
    if not child:
        _try(mutant, tests)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != NOT_NOTICED


def _try(mutant: Mutant, tests: Sequence[pytest.Item]) -> None:
    """End this process, with `NOT_NOTICED` if no test fails."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, -1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        plant(mutant)
        is_noticed = any(_fails(item) for item in tests)
        os._exit(0 if is_noticed else NOT_NOTICED)
    finally:
        os._exit(0)


def _fails(item: pytest.Item) -> bool:
    return any(each.failed for each in runtestprotocol(item, nextitem=None, log=False))


def main(modules: Sequence[str]) -> None:
    """Survey these modules of the core, or all that decide anything."""
    known = sorted({path.stem for path in CORE.glob("*.py")} - QUIET - {"policy"})
    files = {str(path) for path in TESTS.glob("unit/test_core_*.py")}
    files |= {str(TESTS / f"property/test_core_{name}.py") for name in PROPERTIES}
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "--capture=no",
        "-k",
        "not planted_fault and not TestCore",
    ]
    pytest.main([*options, *sorted(files)], plugins=[Survey(modules or known)])


if __name__ == "__main__":
    main(sys.argv[1:])
