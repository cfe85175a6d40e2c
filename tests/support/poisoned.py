"""A folder with a module of every name that a process may import; each notes that it was."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

NAMES = frozenset(
    name
    for name in (
        *sys.stdlib_module_names, *packages_distributions(), "sitecustomize", "usercustomize",
        "headrace", "headrace_airflow", "headrace_pages", "headrace_bench", "headrace_probes",
    )
    if name.isidentifier()
)  # fmt: skip
"""The standard library, and all that is installed."""


class Poisoned:
    """A folder of such modules, each a file.

    Args:
        folder: Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes = folder.parent / f"{folder.name}.imported"
        folder.mkdir(exist_ok=True)
        note = f"open({str(self._notes)!r}, 'a').write(__name__ + '\\n')\n"
        for name in NAMES:
            (folder / f"{name}.py").write_text(note)

    @property
    def imported(self) -> set[str]:
        """Modules of the folder that were imported by any process."""
        return set(self._notes.read_text().split()) if self._notes.exists() else set()
