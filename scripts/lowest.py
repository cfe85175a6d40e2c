"""Prints pins of the lowest versions that `pyproject.toml` allows, for `pip install -r`.

PyTorch is left out: its wheels are tied to Python's version and bring CUDA unless chosen by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from packaging.requirements import Requirement

EXTRAS = ("audio", "parquet", "postgres")
"""Extras that are tried, too."""

LEFT_OUT = {"torch", "typing-extensions"}
"""Chosen by hand, or as PyTorch needs it."""


def lowest(requirement: Requirement) -> str:
    """The pin of the lowest version that a range begins with."""
    (least,) = (each.version for each in requirement.specifier if each.operator == ">=")
    release = least if "." in least else f"{least}.0"
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}=={release}.*"


def main() -> None:
    """Print a pin a line."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][e] for e in EXTRAS)]
    for requirement in (Requirement(each) for names in lists for each in names):
        if requirement.name not in LEFT_OUT:
            sys.stdout.write(f"{lowest(requirement)}\n")


if __name__ == "__main__":
    main()
