"""Small changes of the core, by mutmut's operators: one at a time, wherever one applies.

mutmut is imported only when it is asked, so that the other tests do without it.
"""

import ast
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff

from tests.support.planting import CORE


@dataclass(frozen=True)
class Mutant:
    """One change of a function of the core."""

    module: str
    function: str
    lines: range
    """Of the statement that is changed, with its block."""
    change: str
    source: str


def mutants(module: str) -> Iterator[Mutant]:
    """The mutants of one module; assertions and what is not in a function stay as they are."""
    text = (CORE / f"{module}.py").read_text()
    functions = dict(_functions(ast.parse(text).body))
    seen = {text}
    for line, source in _changed(text):
        found = next((each for each in functions.items() if line in _lines(each[1])), None)
        if found is None or source in seen:
            continue
        seen.add(source)
        statement = _statement(found[1], line)
        if isinstance(statement, ast.Assert):
            continue
        yield Mutant(module, found[0], _lines(statement), _difference(text, source), source)


def _changed(text: str) -> Iterator[tuple[int, str]]:
    """(line, changed text) by each of mutmut's operators, wherever it applies."""
    metadata = importlib.import_module("libcst.metadata")
    mutation = importlib.import_module("mutmut.mutation.file_mutation")
    pragmas = importlib.import_module("mutmut.mutation.pragma_handling")
    wrapper = metadata.MetadataWrapper(importlib.import_module("libcst").parse_module(text))
    visitor = mutation.MutationVisitor(
        mutation.mutation_operators, pragmas.IgnoredCode(set(), set(), set())
    )
    wrapper.visit(visitor)
    spans = wrapper.resolve(metadata.ByteSpanPositionProvider)
    raw = text.encode()
    for each in visitor.mutations:
        start, length = spans[each.original_node].start, spans[each.original_node].length
        code = wrapper.module.code_for_node(each.mutated_node).encode()
        line = raw.count(b"\n", 0, start) + 1
        yield line, (raw[:start] + code + raw[start + length :]).decode()


def _functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for each in body:
        if isinstance(each, ast.FunctionDef):
            yield prefix + each.name, each
        elif isinstance(each, ast.ClassDef):
            yield from _functions(each.body, f"{each.name}.")


def _statement(function: ast.stmt, line: int) -> ast.stmt:
    """The innermost statement that has this line."""
    inside = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and line in _lines(n)]
    return min(inside, key=lambda each: len(_lines(each)))


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _difference(text: str, source: str) -> str:
    lines = unified_diff(text.splitlines(), source.splitlines(), n=0, lineterm="")
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    return " ".join(f"{line[0]} {line[1:].strip()}" for line in changed)
