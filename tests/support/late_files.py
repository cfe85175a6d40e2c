"""A folder as a slow shared file system shows it: what others write is seen late."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class LateFiles:
    """Keeps what was once seen of the files of a folder until the folder is opened anew.

    As NFS does with the attributes of a folder: a name that was not there stays so, and a file that
    was replaced keeps its content.
    """

    folder: Path
    seen: dict[Path, bytes | None] = field(default_factory=dict)
    is_off: bool = False
    num_looks: int = 0
    """How often the folder was opened."""

    def content(self, path: Path) -> bytes | None:
        """What this machine sees of a file; None for nothing."""
        if path not in self.seen:
            with self.written_elsewhere():
                self.seen[path] = path.read_bytes() if path.is_file() else None
        return self.seen[path]

    def hides(self, path: Path) -> bool:
        """Whether a path is shown as it was."""
        return not self.is_off and path.parent == self.folder

    @contextmanager
    def written_elsewhere(self) -> Iterator[None]:
        """What is written in this block is written by another machine."""
        before, self.is_off = self.is_off, True
        try:
            yield
        finally:
            self.is_off = before


@contextmanager
def late_files(folder: Path) -> Iterator[LateFiles]:
    """See the files of a folder late, from now on, in this process."""
    late = LateFiles(folder)
    read_bytes, exists, open_file, listdir = Path.read_bytes, Path.exists, os.open, os.listdir

    def read(path: Path) -> bytes:
        if not late.hides(path):
            return read_bytes(path)
        content = late.content(path)
        if content is None:
            raise FileNotFoundError(path)
        return content

    def is_there(path: Path, **options: Any) -> bool:
        return late.content(path) is not None if late.hides(path) else exists(path, **options)

    def look(path: Any) -> None:
        if path in (folder, str(folder)):
            late.seen.clear()
            late.num_looks += 1

    def opened(path: Any, *how: Any, **options: Any) -> int:
        look(path)
        return open_file(path, *how, **options)

    def listed(path: Any) -> list[str]:
        look(path)  # a client opens a folder to list it
        return listdir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", read)
        patch.setattr(Path, "exists", is_there)
        patch.setattr(os, "open", opened)
        patch.setattr(os, "listdir", listed)
        yield late
