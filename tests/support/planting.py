"""Runs a test against a copy of the core in which one line is another.

The copy is loaded from its sources in the place of the real one, together with the tests that
use it, and is gone afterwards; a core that was compiled makes no difference.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location, spec_from_loader
from pathlib import Path
from types import ModuleType

import gateway

CORE = Path(gateway.__file__).parent / "core"
PREFIX = "gateway.core."
PACKAGES = ("gateway", "tests")


class Changed(Loader):
    """A module of the core with one of its lines replaced."""

    def __init__(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        times = text.count(old)
        if times != 1:  # not an AssertionError, which would pass for a fault that was caught
            raise ValueError(f"{path.name} has {times} times: {old}")
        self._path = path
        self._text = text.replace(old, new)

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed source as that module."""
        exec(compile(self._text, str(self._path), "exec"), module.__dict__)  # noqa: S102  # our own source


class Sources(MetaPathFinder):
    """Finds the core's modules in their sources, one of them changed."""

    def __init__(self, file: str, old: str, new: str) -> None:
        self._name = PREFIX + file.removesuffix(".py")
        self._changed = Changed(CORE / file, old, new)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The source of a module of the core; nobody else's."""
        if not fullname.startswith(PREFIX):
            return None
        if fullname == self._name:
            return spec_from_loader(fullname, self._changed)
        return spec_from_file_location(fullname, CORE / (fullname.removeprefix(PREFIX) + ".py"))


@contextmanager
def planted(file: str, old: str, new: str) -> Iterator[None]:
    """While this lasts, what is imported of the project uses a core with `new` for `old`."""
    finder = Sources(file, old, new)
    kept = _taken_out()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _taken_out()
        sys.modules.update(kept)


def fresh(module: str) -> ModuleType:
    """A module of tests, over the core that is planted."""
    return importlib.import_module(module)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in PACKAGES]
    return {name: sys.modules.pop(name) for name in names}
