"""Packages of docs/how-to/extend.md, as pip would lay them down."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.entry_points import load_entry, load_group, names_in
from headrace.fields.field_kind import kinds
from headrace.recipe.backend import backend_of, option_blocks
from headrace.recipe.yaml_types import _schema
from support.sources import ROOT

PAGE = (ROOT / "docs" / "how-to" / "extend.md").read_text()


def blocks(section: str, language: str) -> str:
    """The code of a language in a section of the page."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))


def install(folder: Path, name: str, module: str, entry_points: str) -> None:
    """Lay a package down as pip does: its module, and a folder with what it is."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(module)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def entry_points_of(section: str) -> str:
    """What pip makes of the table in the section's pyproject.toml."""
    groups = re.findall(
        r'\[project\.entry-points\."([\w.]+)"\]\n((?:\w+ = ".*"\n?)+)', blocks(section, "toml")
    )
    return "".join(f"[{group}]\n{entries}\n" for group, entries in groups).replace('"', "")


@contextmanager
def found_in(folder: Path) -> Iterator[None]:
    """Packages of a folder are found by this process while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for file in folder.glob("*.py"):
            patch.delitem(sys.modules, file.stem, raising=False)
        _forget()
        yield
    _forget()


def _forget() -> None:
    pages = sys.modules.get("headrace_pages.added")
    others = [] if pages is None else [pages.added]
    caches = (load_group, names_in, load_entry, backend_of, option_blocks, _schema, kinds, *others)
    for cached in caches:
        cached.cache_clear()
