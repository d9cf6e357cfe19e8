"""The shape of the house: directions of imports, the pure core, and the budgets of size.

The layers are read from import-linter's table in pyproject.toml, so there is one list of them.
"""

import ast
import io
import re
import statistics
import sys
import tokenize
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FILE_LINES_MAX = 500
FILE_LINES_MEDIAN = 150
FUNCTION_LINES_MAX = 60
FUNCTION_LINES_MEDIAN = 10
POSITIONAL_MAX = 4
TEST_RATIO_WANTED = 1.0
TEST_RATIO_MIN = 0.8

# What waits, reads a clock, rolls dice, logs, or reaches the world outside the process.
IMPURE = frozenset(
    {
        *("asyncio", "concurrent", "contextvars", "multiprocessing", "queue", "sched", "threading"),
        *("datetime", "time", "random", "secrets", "uuid", "logging", "warnings"),
        *("io", "os", "pathlib", "shutil", "signal", "subprocess", "sys", "tempfile"),
        *("http", "select", "selectors", "socket", "ssl", "urllib"),
    }
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval"})
EMPTY_NAMES = ("Manager", "Handler", "Helper", "Utils", "Util", "Base", "Data", "Info")
EMPTY_MODULES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "base"})
SUPPRESSION = re.compile(r"#\s*(type:\s*ignore|noqa)")
REASONED = re.compile(
    r"# (type: ignore\[[a-z, -]+\]|noqa: [A-Z]+\d+(, [A-Z]+\d+)*)  ?(#|-|--) ?\S.*"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def part(self) -> str:
        """The module or package right under `gateway`."""
        return self.name.split(".")[1] if "." in self.name else self.name

    def functions(self) -> Iterator[Function]:
        yield from (n for n in ast.walk(self.tree) if isinstance(n, Function))

    def imports(self) -> Iterator[str]:
        """Full names of all that is imported, wherever in the file."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None, f"{self.name}: imports are absolute"
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def modules(folder: str) -> tuple[Module, ...]:
    """All modules under `folder`, sorted by name."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        found.append(Module(name, path, text, ast.parse(text)))
    return tuple(found)


@cache
def layers() -> tuple[tuple[frozenset[str], bool], ...]:
    """The layers from the top: the parts in each, and whether these may import one another."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    table = next(contract for contract in contracts if contract["id"] == "layers")
    return tuple(
        (frozenset(re.findall(r"\w+", layer)), "|" not in layer) for layer in table["layers"]
    )


def resolved(imported: str) -> str | None:
    """The module of ours that `imported` is or lies in; None for anybody else's."""
    names = {module.name for module in modules("gateway")}
    while imported not in names:
        imported, _, rest = imported.rpartition(".")
        if not rest:
            return None
    return imported


@cache
def dependencies() -> dict[str, frozenset[str]]:
    """Module -> modules of ours that it imports."""
    return {
        module.name: frozenset(found for name in module.imports() if (found := resolved(name)))
        for module in modules("gateway")
    }


def assert_none(found: list[str]) -> None:
    """Fail with all that was found, one a line."""
    assert not found, "\n".join(("", *found))


def misses(module: Module, node: Function, what: str) -> str:
    """One line of a failure, in a form that editors can jump to."""
    return f"{module.path.relative_to(ROOT)}:{node.lineno}: {node.name} {what}"


def violates(importer: str, imported: str) -> bool:
    """Whether the part `importer` may not import the part `imported`."""
    rank = {part: index for index, (parts, _) in enumerate(layers()) for part in parts}
    if imported in (importer, "gateway"):
        return False
    if rank[importer] == rank[imported]:
        return not layers()[rank[importer]][1]
    return rank[importer] > rank[imported]


def test_every_module_belongs_to_a_layer() -> None:
    """Who adds a package would otherwise escape the directions unseen."""
    known = {part for parts, _ in layers() for part in parts} | {"gateway"}
    assert {module.part for module in modules("gateway")} <= known


def test_imports_point_down() -> None:
    """Who changes the edge must not have to retest the scheduler."""
    upward = [
        f"{importer} imports {imported}"
        for importer, found in dependencies().items()
        for imported in sorted(found)
        if violates(*(f"{name}.".split(".")[1] or "gateway" for name in (importer, imported)))
    ]
    assert_none(upward)


@pytest.mark.parametrize(
    ("importer", "imported", "forbidden"),
    [
        ("core", "api", True),
        ("upstream", "runtime", True),
        ("errors", "tenancy", True),
        ("api", "runtime", False),
        ("emulator", "sim", False),
        ("cli", "core", False),
    ],
)
def test_the_direction_judge_tells_up_from_down(
    importer: str, imported: str, forbidden: bool
) -> None:
    """A judge that passes everything would protect nobody."""
    assert violates(importer, imported) is forbidden


def test_no_import_cycles() -> None:
    """Who reads a file must be able to read what it needs first."""
    try:
        tuple(TopologicalSorter(dependencies()).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_the_core_imports_only_pure_standard_library() -> None:
    """The simulator and a replayed incident need a core that no clock or socket can sway."""
    impure = [
        f"{module.name} imports {name}"
        for module in modules("gateway/core")
        for name in module.imports()
        if (top := name.partition(".")[0]) != "gateway"
        and (top in IMPURE or top not in sys.stdlib_module_names)
    ]
    assert_none(impure)


def test_the_core_neither_awaits_nor_touches_the_world() -> None:
    """`handle()` is the only lock the dispatcher has: an await inside it would open it."""
    found = [
        f"{module.name}:{node.lineno}"
        for module in modules("gateway/core")
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.AsyncFunctionDef, ast.Await))
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in IMPURE_CALLS
        )
    ]
    assert_none(found)


def test_package_files_are_empty() -> None:
    """Importing one module must not run half of the product."""
    full = [
        module.name
        for module in (*modules("gateway"), *modules("tests"))
        if module.path.name == "__init__.py" and module.text.strip() and module.name != "gateway"
    ]
    assert_none(full)


def test_the_top_package_holds_the_version_only() -> None:
    """The build reads the version without importing the product."""
    top = next(module for module in modules("gateway") if module.name == "gateway")
    statements = [node for node in top.tree.body if not isinstance(node, ast.Expr)]
    assert [ast.unparse(node).split(" ")[0] for node in statements] == ["__version__"]


@pytest.mark.parametrize("folder", ["gateway", "tests"])
def test_files_stay_short(folder: str) -> None:
    """A file that nobody can hold in mind is where the next defect hides."""
    long = [f"{m.name}: {m.lines} lines" for m in modules(folder) if m.lines > FILE_LINES_MAX]
    assert_none(long)


@pytest.mark.parametrize("folder", ["gateway", "tests"])
def test_functions_stay_short(folder: str) -> None:
    """Who reads a function should see all of it at once."""
    long = [
        misses(module, node, f"has {length(node)} lines")
        for module in modules(folder)
        for node in module.functions()
        if length(node) > FUNCTION_LINES_MAX
    ]
    assert_none(long)


def test_the_typical_file_and_function_are_small() -> None:
    """The hard limits are for exceptions; this one is about the habit."""
    files = [module.lines for module in modules("gateway") if module.lines]
    functions = [length(node) for module in modules("gateway") for node in module.functions()]
    assert statistics.median(files) <= FILE_LINES_MEDIAN
    assert statistics.median(functions) <= FUNCTION_LINES_MEDIAN


def test_at_most_four_arguments_go_by_position() -> None:
    """The fifth unnamed number of a call is the one that gets swapped."""
    wide = [
        misses(module, node, f"takes {positional(node)} arguments by position")
        for module in modules("gateway")
        for node in module.functions()
        if positional(node) > POSITIONAL_MAX
    ]
    assert_none(wide)


def test_every_suppression_has_a_code_and_a_reason() -> None:
    """A silenced checker without a reason is never switched on again."""
    bare = [
        f"{module.path.relative_to(ROOT)}:{token.start[0]}: {token.string}"
        for module in (*modules("gateway"), *modules("tests"))
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type == tokenize.COMMENT
        and SUPPRESSION.search(token.string)
        and not REASONED.search(token.string)
    ]
    assert_none(bare)


@pytest.mark.parametrize(
    ("comment", "is_reasoned"),
    [
        ("# type: ignore[arg-type]  # the stub is older than the library", True),
        ("# noqa: S104  # the container's own network", True),
        ("# noqa: S104, S311 - both are made up", True),
        ("# type: ignore[arg-type]", False),
        ("# type: ignore  # because", False),
        ("# noqa", False),
    ],
)
def test_the_suppression_judge_wants_code_and_reason(comment: str, is_reasoned: bool) -> None:
    """A judge that passes everything would protect nobody."""
    assert SUPPRESSION.search(comment)
    assert bool(REASONED.search(comment)) is is_reasoned


def test_names_say_something() -> None:
    """A `RequestManager` tells its reader nothing, and attracts everything."""
    classes = [
        f"{module.name}.{node.name}"
        for module, name in product(modules("gateway"), EMPTY_NAMES)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith(name)
    ]
    files = [m.name for m in modules("gateway") if m.name.rpartition(".")[2] in EMPTY_MODULES]
    assert_none(classes + files)


def test_background_work_is_owned() -> None:
    """A task that nobody holds is collected while it runs, and its failure is never seen."""
    bare = [
        f"{module.name}:{node.lineno}"
        for module in modules("gateway")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) in ("asyncio.create_task", "asyncio.ensure_future")
    ]
    assert_none(bare)


def test_no_state_is_shared_through_globals() -> None:
    """Two gateways in one process, as every integration test starts, must not meet."""
    shared = [
        f"{module.name}:{node.lineno}"
        for module in modules("gateway")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ]
    assert_none(shared)


def test_streams_pass_no_buffering_middleware() -> None:
    """`BaseHTTPMiddleware` breaks disconnects and holds back streams."""
    found = [m.name for m in modules("gateway") for name in m.imports() if "BaseHTTP" in name]
    assert_none(found)


def compiled() -> frozenset[Path]:
    """What the Makefile has compiled: whatever runs for each event, request and chunk."""
    makefile = (ROOT / "Makefile").read_text()
    listed = re.findall(r"addprefix (gateway/\w+/),([\s\w.\\]+)\)", makefile)
    files = {ROOT / folder / name for folder, names in listed for name in names.split()}
    return frozenset(each for each in files if each.suffix == ".py")


def test_no_chunk_pays_for_an_exception_that_nobody_sees() -> None:
    """`b"x" in data` makes CPython 3.11 raise and drop one: more than all of its search."""
    files = compiled()
    assert ROOT / "gateway/upstream/sse.py" in files
    found = [
        f"{module.path.relative_to(ROOT)}:{node.lineno}: use find, or a number for one byte"
        for module in modules("gateway")
        if module.path in files
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.In | ast.NotIn)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.left.value, bytes)
    ]
    assert_none(found)


def test_there_is_about_as_much_test_as_code() -> None:
    """What is not tested is what breaks at night; below the wanted ratio it is said aloud."""
    code = sum(module.lines for module in modules("gateway"))
    tests = sum(module.lines for module in modules("tests"))
    ratio = tests / code
    if ratio < TEST_RATIO_WANTED:
        warnings.warn(f"{ratio:.2f} lines of test a line of code", stacklevel=1)
    assert ratio >= TEST_RATIO_MIN


def length(node: Function) -> int:
    """Lines from `def` to the last one."""
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def positional(node: Function) -> int:
    """Arguments that may be given without their name, the object itself not counted."""
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))
