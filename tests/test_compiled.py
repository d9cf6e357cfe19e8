"""What mypyc makes of some lines that Python takes otherwise, and that no compiled module has them.

A coroutine of mypyc's that waits while it handles an error leaves that error behind as the one that
is being handled, in whatever runs meanwhile: another request's `finally` would raise it there. And
what awaits in its `finally` raises it at its own end. A name that two handlers give to their errors
has the type of the first: with the other's error it ends in a TypeError.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

NEVER_WAIT = frozenset({"asyncio.timeout", "leaving", "self._gate.admitted", "aclosing"})
"""What ends an `async with` without waiting for anything."""
WAITS = ast.Await | ast.Yield | ast.YieldFrom | ast.AsyncFor | ast.AsyncWith
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def compiled() -> list[Path]:
    """The files that `make compile` gives to mypyc."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    rule = next(line for line in text.splitlines() if line.startswith("COMPILED :="))
    found = [path for glob in re.findall(r"wildcard (\S+?)\)", rule) for path in ROOT.glob(glob)]
    for folder, names in re.findall(r"addprefix (\S+), ([^)]*)\)", rule):
        found += [ROOT / folder / name for name in names.split()]
    return sorted(found)


def waits_in_the_way(source: str) -> Iterator[int]:
    """Lines that wait within `except` or `finally`, or at the end of an `async with`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try | ast.TryStar):
            handled = [line for handler in node.handlers for line in handler.body]
            for line in (*handled, *node.finalbody):
                yield from _waits(line)
        elif isinstance(node, ast.AsyncWith):
            ends = [ast.unparse(item.context_expr).partition("(")[0] for item in node.items]
            if not NEVER_WAIT.issuperset(ends):
                yield node.lineno


def names_of_two(source: str) -> Iterator[int]:
    """Lines of functions in which one name stands for errors of two kinds."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds: dict[str, set[str]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                    kinds.setdefault(node.name, set()).add(ast.unparse(node.type))
            if any(len(each) > 1 for each in kinds.values()):
                yield function.lineno


def _waits(node: ast.AST) -> Iterator[int]:
    if isinstance(node, FUNCTIONS):
        return  # made there, and run elsewhere
    if isinstance(node, WAITS):
        yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _waits(child)


def test_no_compiled_module_waits_while_it_handles_an_error() -> None:
    """A request that waits for its replica to come back broke the streams that ended meanwhile."""
    files = compiled()
    assert len(files) > 100
    found = [f"{path}:{line}" for path in files for line in waits_in_the_way(path.read_text())]
    assert not found, "\n".join(("", *found))


def test_no_compiled_function_gives_errors_of_two_kinds_one_name() -> None:
    """No stream went on on another replica in a gateway that was compiled."""
    found = [f"{path}:{line}" for path in compiled() for line in names_of_two(path.read_text())]
    assert not found, "\n".join(("", *found))


@pytest.mark.parametrize(("second", "is_fine"), [("other", True), ("first", False)])
def test_the_judge_tells_one_name_from_two(second: str, is_fine: bool) -> None:
    """A rule that finds nothing is no rule."""
    source = (
        "def f():\n  try:\n    g()\n"
        "  except OSError as first:\n    h(first)\n"
        f"  except ValueError as {second}:\n    h({second})\n"
    )
    assert (not list(names_of_two(source))) is is_fine


@pytest.mark.parametrize(
    ("body", "is_fine"),
    [
        ("try:\n  await a()\nexcept OSError:\n  b()\nelse:\n  await c()\nfinally:\n  d()", True),
        ("try:\n  a()\nexcept OSError:\n  await b()", False),
        ("try:\n  a()\nexcept OSError:\n  if c:\n    return await b()", False),
        ("try:\n  a()\nfinally:\n  await b()", False),
        ("try:\n  a()\nexcept OSError:\n  async def later():\n    await b()\n  start(later)", True),
        ("with suppress(OSError):\n  await a()", True),
        ("async with asyncio.timeout(1):\n  await a()", True),
        ("async with asyncio.TaskGroup() as tasks:\n  await a()", False),
        ("try:\n  a()\nexcept OSError:\n  yield 1", False),
    ],
)
def test_the_judge_tells_where_waiting_is_fine(body: str, is_fine: bool) -> None:
    """A rule that finds nothing is no rule."""
    source = "async def f():\n" + "\n".join(f"  {line}" for line in body.splitlines())
    assert (not list(waits_in_the_way(source))) is is_fine
