"""Prints `constraints.txt`: the exact versions of all that is installed beside headrace itself.

Run by `make pins`, in an environment made by `make setup`.
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, distributions

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

OLDEST = "3.10"
"""Oldest Python that headrace supports."""

OWN = {"headrace", "pip", "setuptools", "wheel"}

HEADER = """\
# The versions that the demo and the tests are run with; `make pins` writes this file.
# The ranges that headrace itself asks for are in pyproject.toml.
"""


def pin(distribution: Distribution) -> str:
    """One line; later Pythons only, where the version does not run on the oldest one."""
    name = canonicalize_name(distribution.metadata["Name"])
    version = Version(distribution.version).public
    needs = SpecifierSet(distribution.metadata.get("Requires-Python") or "")
    first = next(minor for minor in range(10, 30) if needs.contains(f"3.{minor}.20"))
    marker = "" if f"3.{first}" == OLDEST else f' ; python_version >= "3.{first}"'
    return f"{name}=={version}{marker}\n"


def main() -> None:
    """Write the file to standard output."""
    found = {canonicalize_name(each.metadata["Name"]): each for each in distributions()}
    lines = [pin(found[name]) for name in sorted(found) if name not in OWN]
    sys.stdout.write(HEADER + "".join(lines))


if __name__ == "__main__":
    main()
