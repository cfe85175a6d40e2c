"""Where the DAG files that come with headrace lie."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def dags_folder() -> Path:
    """Folder of the DAG files: inside the installed package, or `dags/` of a checkout."""
    packaged = _HERE / "dags"
    return packaged if packaged.is_dir() else _HERE.parent.parent / "dags"
