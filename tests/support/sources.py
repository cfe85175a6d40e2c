"""The project's own files, for tests that read them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Root folder of the project."""

PRODUCT_FOLDERS = ("pipelines", "plugins", "dags")
"""Folders of the code that users run."""


def project_files() -> list[Path]:
    """All files that are, or may become, part of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def product_modules() -> list[Path]:
    """Python files that users run."""
    return [
        path
        for path in project_files()
        if path.suffix == ".py" and relative(path).parts[0] in PRODUCT_FOLDERS
    ]


def texts() -> Iterator[tuple[Path, str]]:
    """Files of the project that hold text, with what they hold."""
    for path in project_files():
        content = path.read_bytes()
        if b"\0" not in content:
            yield relative(path), content.decode()


def relative(path: Path) -> Path:
    """Path of a file as seen from the root folder."""
    return path.relative_to(ROOT)
