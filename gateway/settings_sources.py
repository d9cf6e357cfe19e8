"""Where settings come from: a YAML file, the environment, the command line; later ones win.

It yields one plain tree and remembers for each place in it who wrote that place (file and line,
variable, option). What the tree means is not known here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

PREFIX = "FAIRGATE_"
SEPARATOR = "__"
CONFIG_VARIABLE = "FAIRGATE_CONFIG"
DEPTH_MAX = 16
PLACES_MAX = 200_000
FILE_BYTES_MAX = 16 << 20

# Kubernetes puts these into every pod beside a Service called "fairgate".
SERVICE_LINK = re.compile(
    r"FAIRGATE_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and the place in the tree that it is about."""

    place: Place
    message: str


@dataclass(frozen=True, slots=True)
class Tree:
    """Settings as plain values, with the origin of each place that somebody wrote."""

    values: Mapping[str, object] = field(default_factory=dict)
    origins: Mapping[Place, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def origin(self, place: Place) -> str:
        """Who wrote `place`, or the nearest place around it; empty when nobody did."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.origins:
                return self.origins[place[:length]]
        return ""

    def overlaid(self, upper: "Tree") -> "Tree":
        """This tree under `upper`: mappings are merged key by key, all else is replaced."""
        origins = dict(self.origins)
        values = _merged(self.values, upper.values, (), origins)
        problems = self.problems + upper.problems
        return Tree(values, origins | dict(upper.origins), problems)


@dataclass(frozen=True, slots=True)
class Sources:
    """All that was read before the gateway began: what is decided at run time comes above it."""

    tree: Tree = field(default_factory=Tree)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


def from_file(path: Path) -> Tree:
    """The YAML file at `path`. Unreadable, malformed or repeated keys become problems."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return Tree(problems=(Problem((), f"{path}: cannot be read: {reason}"),))
    if len(raw) > FILE_BYTES_MAX:
        return Tree(problems=(Problem((), f"{path}: larger than {FILE_BYTES_MAX} bytes"),))
    return from_yaml(text, name=path.name)


def from_yaml(text: str, *, name: str) -> Tree:
    """The YAML document `text`; `name` stands before the line number in messages."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        origins: dict[Place, str] = {}
        problems = () if node is None else tuple(_walked(node, (), name, origins))
        values = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return Tree(problems=(Problem((), _complaint(name, error)),))
    finally:
        loader.dispose()
    if values is None:
        return Tree()
    if not isinstance(values, dict):
        return Tree(problems=(Problem((), f"{name}: the document must be a mapping of keys"),))
    return Tree(values, origins, problems)


def from_environment(environ: Mapping[str, str]) -> Tree:
    """Variables `FAIRGATE_A__B=value` as `a: {b: value}`; values are read as YAML.

    An empty variable counts as not set. `FAIRGATE_CONFIG` and Kubernetes' service links are no
    settings.
    """
    tree = Tree()
    for name in sorted(environ):
        text = environ[name]
        if not name.startswith(PREFIX) or not text or name == CONFIG_VARIABLE:
            continue
        if SERVICE_LINK.fullmatch(name):
            continue
        place = tuple(part.lower() for part in name.removeprefix(PREFIX).split(SEPARATOR))
        tree = tree.overlaid(_leaf(place, _scalar_or_flow(text), origin=name))
    return tree


def from_overrides(overrides: Mapping[str, object]) -> Tree:
    """Dotted keys (`listen.port`) with their values; None means that the option was not given."""
    tree = Tree()
    for key, value in overrides.items():
        if value is not None:
            listed = list(value) if isinstance(value, tuple) else value
            tree = tree.overlaid(_leaf(tuple(key.split(".")), listed, origin="command line"))
    return tree


def _merged(
    lower: Mapping[str, object],
    upper: Mapping[str, object],
    place: Place,
    origins: dict[Place, str],
) -> dict[str, object]:
    """`lower` under `upper`; forgets the origins of what was replaced."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        here = (*place, key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(below, value, here, origins)
            continue
        merged[key] = value
        for known in [known for known in origins if known[: len(here)] == here]:
            del origins[known]
    return merged


def _walked(
    node: yaml.Node, place: Place, name: str, origins: dict[Place, str]
) -> Iterator[Problem]:
    """Fill `origins` with the line of each place under `node`; yield repeated keys."""
    if len(place) > DEPTH_MAX or len(origins) > PLACES_MAX:
        raise ValueError("nested too deeply, or too large once its aliases are written out")
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            origins[(*place, index)] = _line(name, item)
            yield from _walked(item, (*place, index), name, origins)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*place, str(key.value))
            if here in origins and key.value != "<<":
                yield Problem(here, f"written a second time (first: {origins[here]})")
            origins[here] = _line(name, key)
            yield from _walked(value, here, name, origins)


def _line(name: str, node: yaml.Node) -> str:
    """`fairgate.yaml:12`, counted from 1."""
    return f"{name}:{node.start_mark.line + 1}"


def _complaint(name: str, error: Exception) -> str:
    """What is wrong with the YAML; never the text of the line, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{name}:{error.problem_mark.line + 1}: not valid YAML: {error.problem}"
    return f"{name}: not valid YAML"


def _leaf(place: Place, value: object, *, origin: str) -> Tree:
    """A tree with one value in it."""
    tree: object = value
    for key in reversed(place):
        tree = {key: tree}
    assert isinstance(tree, dict)
    return Tree(tree, {place: origin})


def _scalar_or_flow(text: str) -> object:
    """`8080` is a number, `[a, b]` a list, `::1` and `a: b` stay text."""
    try:
        value: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    is_flow = text.lstrip().startswith(("[", "{"))
    return value if is_flow or not isinstance(value, (dict, list)) else text
