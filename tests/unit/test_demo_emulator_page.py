"""docs/emulator.md, held against the emulator."""

import re
from pathlib import Path

from gateway.cli import app
from gateway.emulator.faults import CUTS, DEFAULT_VALUES, TIMED, FaultKind
from gateway.sim.profiles import PROFILES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "emulator.md").read_text()
FAULT_ROW = re.compile(
    r"^\| `([a-z0-9-]+)`( \*)? \| [^|]+ \| (?:[^|(]*\((\d+)[^|]*)?\|$", re.MULTILINE
)


def section(heading: str) -> str:
    """The text under `## heading`."""
    return PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_every_profile_stands_with_its_sizes() -> None:
    """Who picks a profile picks it for these."""
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|",
        section("Profiles"),
        re.MULTILINE,
    )
    written = {name: tuple(int(size.replace(",", "")) for size in sizes) for name, *sizes in rows}
    assert written == {
        profile.name: (
            profile.max_num_seqs,
            profile.kv_blocks * profile.block_tokens,
            profile.max_model_len,
        )
        for profile in PROFILES
    }


def test_every_fault_stands_with_the_default_of_its_value() -> None:
    """A fault nobody knows of is never injected."""
    rows = {kind: (star, default) for kind, star, default in FAULT_ROW.findall(section("Faults"))}
    assert set(rows) == set(FaultKind)
    assert {kind for kind, (star, _) in rows.items() if star} == set(CUTS)
    for kind, value in DEFAULT_VALUES.items():
        assert float(rows[kind][1]) == value
    assert all(rows[kind][1] == "0" for kind in TIMED)


def test_every_option_stands() -> None:
    """`--help` has room for a few words only."""
    callbacks = [command.callback for command in app.registered_commands]
    emulate = next(each for each in callbacks if each and each.__name__ == "emulate")
    names = emulate.__annotations__.keys() - {"return"}
    options = {f"--{name.replace('_', '-')}" for name in names}
    assert set(re.findall(r"`(--[a-z-]+)`", section("Options"))) == options
