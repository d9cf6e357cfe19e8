"""The documents, held against the code: what they say exists, and what exists they say."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.core.policy import DEFAULT_TIERS
from gateway.settings import load_settings
from gateway.settings_document import (
    Document,
    ModelSection,
    ReplicaSection,
    Section,
    section_in,
)
from gateway.settings_words import parsed_size

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ROW = re.compile(r"^\| `([^`]+)` \|[^|]*\| (?:`([^`]*)`|(required)) \|", re.MULTILINE)
REQUIRED = object()
IMPORTED_OF_EXTRAS = {
    "matplotlib": "matplotlib.",
    "s3fs": "s3fs",
    "opentelemetry-sdk": "opentelemetry.sdk.",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http.",
}
"""What the code imports of each package that comes with an extra."""


def settings_keys(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """All keys of the settings, dotted; the keys of a replica once, under `replicas[]`."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        inner = section_in(field.annotation)
        is_repeated = section is ModelSection and inner is ReplicaSection
        if inner is None or is_repeated:
            yield key, field
            continue
        text = str(field.annotation)
        mark = "[]" if text.startswith("tuple") else ".*" if text.startswith("dict") else ""
        yield from settings_keys(inner, f"{key}{mark}.")


def documented_defaults() -> dict[str, object]:
    """Key -> default, as the tables of docs/configuration.md say."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    rows = ROW.findall(text)
    assert len(rows) == len({key for key, _, _ in rows}), "a key is documented twice"
    return {key: REQUIRED if required else yaml.safe_load(cell) for key, cell, required in rows}


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    """Who reads the page must be able to rely on it being all there is."""
    assert sorted(documented_defaults()) == sorted(key for key, _ in settings_keys(Document))


def test_documented_defaults_are_the_codes() -> None:
    """A wrong default in the page is found by the operator who relied on it."""
    written = documented_defaults()
    wrong = []
    for key, field in settings_keys(Document):
        default = REQUIRED if field.default is PydanticUndefined else field.default
        value = written[key]
        if key.startswith("bounds.") and isinstance(value, str):
            value = parsed_size(value)
        if value != (list(default) if isinstance(default, tuple) else default):
            wrong.append(f"{key}: the code says {default!r}")
    assert wrong == []


def test_the_example_loads_and_its_tiers_are_the_default_ones() -> None:
    """The first file that anybody tries must work, and must not drift from the defaults."""
    settings = load_settings(
        config=ROOT / "fairgate.example.yaml", environ={"VLLM_KEY": "x"}, overrides={}
    )
    assert settings.policy().tiers == DEFAULT_TIERS
    assert len(settings.addresses()) == 2
    assert len(settings.lookups()) == 1


def dependencies() -> set[str]:
    """The run-time dependencies that pyproject.toml declares, in lower case."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {re.split(r"[^\w-]", line)[0].lower() for line in project["dependencies"]}


def extras() -> set[str]:
    """What comes only with an extra that users install, in lower case."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["optional-dependencies"]
    lines = [line for name, group in groups.items() if name != "dev" for line in group]
    return {re.split(r"[^\w-]", line)[0].lower() for line in lines}


def test_every_dependency_has_its_line() -> None:
    """A dependency that nobody can justify is one that somebody else's accident reaches us by."""
    text = (ROOT / "docs" / "dependencies.md").read_text()
    written = set(re.findall(r"^\| ([\w-]+) \|", text, re.MULTILINE)) - {"package"}
    assert {name.lower() for name in written} == dependencies() | extras()


def test_dependencies_are_those_that_the_code_imports() -> None:
    """What comes along by chance breaks on the day its bringer drops it; what is unused is risk."""
    files = [path.read_text() for path in (ROOT / "gateway").rglob("*.py")]
    imported = {
        name
        for text in files
        for name in re.findall(r"^\s*(?:from|import) (\w+)(?=[. ]|$)", text, re.MULTILINE)
    }
    owners = packages_distributions()
    used = {owners[name][0].lower() for name in imported & owners.keys()} - {"fairgate"}
    # FastAPI is a Starlette with a schema, pydantic is pydantic-core with a surface.
    used -= {"starlette", "pydantic_core"}
    # What is an extra's may be installed or not, and brings what it is a part of.
    used -= {"opentelemetry-api"}
    assert {name.replace("_", "-") for name in used} - extras() == dependencies()
    text = "\n".join(files)
    assert extras() == IMPORTED_OF_EXTRAS.keys()
    for module in IMPORTED_OF_EXTRAS.values():
        assert f"from {module}" in text or f"import {module}" in text, module


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    """A dead link in the README is the first thing a newcomer sees of our care."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        linked = (path.parent / file).resolve() if file else path
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            dead.append(target)
    assert dead == []


def anchors(path: Path) -> set[str]:
    """The anchors that a Markdown page offers, as GitHub makes them from its headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def test_every_file_that_the_architecture_names_is_there() -> None:
    """Whoever looks for the place of a change is sent to a file that was split long ago."""
    code, missing = ROOT / "gateway", []
    text = (ROOT / "docs" / "architecture.md").read_text()
    for cell in re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE):
        folder = code / "core"
        for name in re.findall(r"`([\w./-]+)`", cell):
            if (code / name).exists():
                folder = (code / name).parent
            elif not (folder / name).exists():
                missing.append(name)
    assert missing == []


def test_every_make_verb_in_the_documents_exists() -> None:
    """A newcomer who types what is printed must not meet "No rule to make target"."""
    makefile = (ROOT / "Makefile").read_text()
    verbs = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    said = {
        (path.name, verb)
        for path in DOCUMENTS
        for verb in re.findall(r"(?:`|^\$? ?|&& )make ([a-z0-9-]+)", path.read_text(), re.MULTILINE)
    }
    assert {(name, verb) for name, verb in said if verb not in verbs} == set()


def test_the_readme_shows_how_to_start() -> None:
    """Who lands on the repository has one minute."""
    assert "make demo" in (ROOT / "README.md").read_text()


def test_every_decision_has_a_number_of_its_own() -> None:
    """Two decisions 0007 would make every reference to it ambiguous."""
    names = [path.name for path in (ROOT / "docs" / "decisions").glob("*.md")]
    numbers = [re.fullmatch(r"(\d{4})-[a-z0-9-]+\.md", name) for name in names]
    assert all(numbers), names
    assert sorted(int(match[1]) for match in numbers if match) == list(range(1, len(names) + 1))


def test_the_changelog_knows_the_version_or_the_next() -> None:
    """Who updates reads here first."""
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[(Unreleased|\d+\.\d+\.\d+)\]", text, re.MULTILINE)
