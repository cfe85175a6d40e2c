"""Print `constraints.txt`: the exact versions of all that `headrace[dev]` needs.

Run by `make pins`; the versions are those installed in `.venv`, without packages that were
installed there by hand.
"""

from __future__ import annotations

import sys
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

PYTHONS = tuple(f"3.{minor}.{micro}" for minor in range(10, 30) for micro in range(20))
"""Versions of Python from the oldest one that headrace supports; Debian 12 has 3.11.2."""

HEADER = """\
# The versions that the demo and the tests are run with; `make pins` writes this file.
# The ranges that headrace itself asks for are in pyproject.toml.
"""


def needed(root: Requirement) -> set[str]:
    """Return the names of all distributions that `root` needs here, without itself."""
    found: set[str] = set()
    visited: set[tuple[str, str]] = set()
    waiting = [(root.name, extra) for extra in ("", *root.extras)]
    while waiting:
        name, extra = waiting.pop()
        key = (canonicalize_name(name), extra)
        if key in visited:
            continue
        visited.add(key)
        found.add(key[0])
        for requirement in map(Requirement, distribution(name).requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(requirement.name, each) for each in ("", *requirement.extras)]
    return found - {canonicalize_name(root.name)}


def pin(name: str) -> str:
    """Return one line; with a marker if the version does not run on the oldest Python."""
    metadata = distribution(name).metadata
    version = Version(metadata["Version"]).public
    needs = SpecifierSet(metadata.get("Requires-Python") or "")
    first = next(each for each in PYTHONS if needs.contains(each))
    key = "python_version" if first.endswith(".0") else "python_full_version"
    marker = "" if first == PYTHONS[0] else f' ; {key} >= "{first.removesuffix(".0")}"'
    return f"{name}=={version}{marker}\n"


def main() -> None:
    """Write the file to standard output."""
    names = sorted(needed(Requirement("headrace[dev]")))
    sys.stdout.write(HEADER + "".join(pin(name) for name in names))


if __name__ == "__main__":
    main()
