"""Profiles from files: step times as they were measured, and fits of an engine of one's own.

Knows the forms of the files; what a step costs is decided in `profiles.py`.
"""

import csv
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path

import yaml

from gateway.sim.profiles import Profile, profile_named

OPERATORS = Path(__file__).parent / "data" / "linear_ops_ms.csv"
"""See `data/LICENCES.md`."""
COLUMNS = {
    "a100-llama2-7b": "a100_llama2_7b_tp1_ms",
    "h100-llama2-7b": "h100_llama2_7b_tp1_ms",
    "a100-llama3-8b": "a100_llama3_8b_tp1_ms",
    "a100-llama2-70b-tp4": "a100_llama2_70b_tp4_ms",
    "h100-llama2-70b-tp4": "h100_llama2_70b_tp4_ms",
}
FILE_BYTES_MAX = 1 << 20
"""Of a profile: a table of thousands of lines is far smaller."""


def measured(name: str) -> Profile:
    """The profile of that name, with its matrix products as measured instead of as fitted.

    Raises:
        ValueError: no such profile, or one that nobody measured.
    """
    profile = profile_named(name)
    column = COLUMNS.get(name)
    if column is None:
        raise ValueError(f"nobody measured {name!r}; measured: {', '.join(COLUMNS)}")
    with OPERATORS.open(newline="") as lines:
        table = tuple((int(row["n_tokens"]), float(row[column])) for row in csv.DictReader(lines))
    return replace(profile, name=f"{name}-measured", linear_ms=table)


def read_profile(path: Path) -> Profile:
    """A profile from a JSON or YAML file of its fields; `base` names one to start from.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no profile; the message says what is wrong.
    """
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise ValueError(f"{path}: a profile has at most {FILE_BYTES_MAX} bytes")
    try:
        read = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path}: expected the fields of a profile, found {type(read).__name__}")
    try:
        return profile_from(read)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def profile_from(told: Mapping[str, object]) -> Profile:
    """A profile from plain values, as `profile_values` gives them.

    Raises:
        ValueError: an unknown or missing field, or a value that is none.
    """
    values = dict(told)
    base = values.pop("base", None)
    known: dict[str, object] = {} if base is None else asdict(profile_named(str(base)))
    names = {field.name: field for field in fields(Profile)}
    unknown = ", ".join(str(name) for name in values if name not in names)
    if unknown:
        raise ValueError(f"unknown fields {unknown}; known: {', '.join(names)}")
    known |= {name: _value(name, value) for name, value in values.items()}
    try:
        return Profile(**known)  # type: ignore[arg-type]  # each was looked at
    except TypeError as error:
        raise ValueError(str(error).partition(" ")[2]) from error


def profile_values(profile: Profile) -> dict[str, object]:
    """All fields as plain values, for a file that `read_profile` reads."""
    values = asdict(profile)
    values["linear_ms"] = [list(point) for point in profile.linear_ms]
    return values


def _value(name: str, value: object) -> object:
    if name == "name":
        return str(value)
    if name == "linear_ms":
        return _table(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    whole = {"layers", "kv_token_bytes", "kv_blocks", "block_tokens", "max_num_seqs",
             "max_model_len"}  # fmt: skip
    if name not in whole:
        return float(value)
    if value != int(value):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def _table(value: object) -> tuple[tuple[int, float], ...]:
    try:
        table = tuple((int(tokens), float(ms)) for tokens, ms in value)  # type: ignore[attr-defined]  # what is no list is refused below
    except (TypeError, ValueError) as error:
        raise ValueError("linear_ms must be a list of [tokens, milliseconds]") from error
    counts = [tokens for tokens, _ in table]
    if counts != sorted(set(counts)) or any(not 0 <= ms < float("inf") for _, ms in table):
        raise ValueError("linear_ms must have rising counts of tokens, and times of at least 0")
    return table
