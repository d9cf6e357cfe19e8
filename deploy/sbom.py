"""Prints what an image is made of as CycloneDX 1.6: Python packages by metadata, Debian's by dpkg.

    sbom.py [DPKG_STATUS]

It reads what is installed and not what was asked for. Without instants and random numbers, so that
the same image gives the same bytes; hashes of the wheels are in requirements-image.lock.
"""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import quote

DPKG_STATUS = Path("/var/lib/dpkg/status")


def bill(status: Path) -> dict[str, object]:
    """The whole document; without Debian's packages where there is no such file."""
    found = [*python_packages(), *debian_packages(status)]
    ordered = {component["bom-ref"]: component for component in found}
    mine = ordered.pop("fairgate", None)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": mine} if mine else {},
        "components": [ordered[ref] for ref in sorted(ordered)],
    }


def python_packages() -> Iterator[dict[str, object]]:
    """What this interpreter could import, and CPython itself."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield _component("platform", "cpython", version, f"pkg:generic/cpython@{version}")
    for distribution in distributions():
        name, version = distribution.metadata["Name"], distribution.version
        if name.lower() == "fairgate":
            yield _component("application", name, version, "fairgate") | _licence(distribution)
            continue
        url = f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}"
        yield _component("library", name, version, url) | _licence(distribution)


def debian_packages(status: Path) -> Iterator[dict[str, object]]:
    """What dpkg says is installed."""
    if not status.is_file():
        return
    for paragraph in status.read_text(encoding="utf-8").split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in paragraph.splitlines()
            if ": " in line and line[:1].isalpha()
        )
        if fields.get("Status") == "install ok installed":
            name, version = fields["Package"], fields["Version"]
            arch = fields["Architecture"]
            url = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={arch}"
            yield _component("library", name, version, url)


def _component(kind: str, name: str, version: str, ref: str) -> dict[str, object]:
    component: dict[str, object] = {"type": kind, "bom-ref": ref, "name": name, "version": version}
    return component | ({"purl": ref} if ref.startswith("pkg:") else {})


def _licence(distribution: Distribution) -> dict[str, object]:
    """The licence as an expression, where the package states one."""
    stated = distribution.metadata.get("License-Expression")
    return {"licenses": [{"expression": stated}]} if stated else {}


if __name__ == "__main__":
    json.dump(bill(Path(sys.argv[1]) if sys.argv[1:] else DPKG_STATUS), sys.stdout, indent=1)
    sys.stdout.write("\n")
