"""What pages, examples and recipes import is public, and public names say what they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from generators.python_api import PUBLIC, Named, public, rendered

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
_TARGET = re.compile(r"_target_: (headrace\w*(?:\.\w+)*)\.(\w+)")
_HEAD = re.compile(r"^(?:from|import) headrace.*$", re.M)
_EXTEND = ROOT / "docs" / "how-to" / "extend.md"
"""Its packages stand beside the engine, and import of it what they need."""
_PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
_RECIPES = [*(ROOT / "examples").glob("*.yaml"), *(ROOT / "pipelines").rglob("builtin/**/*.yaml")]


def imported() -> Iterator[tuple[str, str]]:
    """Modules and names that readers are told to import or to name."""
    pages = (page for page in _PAGES if page != _EXTEND)
    codes = [code for page in pages for code in _FENCE.findall(page.read_text())]
    codes += [path.read_text() for path in (ROOT / "examples").glob("*.py")]
    for line in (line for code in codes for line in _HEAD.findall(code)):
        (node,) = ast.parse(line).body
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), each.name) for each in node.names)
        else:
            yield line, ""
    for path in (*_PAGES, *_RECIPES):
        yield from _TARGET.findall(path.read_text())


def test_what_readers_are_told_to_import_is_public():
    known = {(module, name) for module, names in PUBLIC.items() for name in names}
    known |= {("headrace", module.partition(".")[2]) for module in PUBLIC}
    found = set(imported())
    assert {("headrace", "script"), ("headrace.data.transforms", "ScaleToUnit")} <= found
    assert found - known == set()


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_tell_what_they_take(module: str):
    for each in public(module):
        for one in (each, *each.members):
            assert one.about, one.name
            lost = [name for name in one.parameters if not _is_told(name, one)]
            assert lost == [], f"{one.name} says nothing of {lost}"


def _is_told(name: str, of: Named) -> bool:
    """By its name; or it is all that the first line can be about, or not used."""
    is_plain = isinstance(of.node, ast.FunctionDef) and len(of.parameters) == 1
    is_used = f"del {name}" not in ast.unparse(of.node)
    return is_plain or not is_used or re.search(rf"\b{name}\b", of.about) is not None


def test_errors_that_public_names_raise_are_public():
    every = [one for module in PUBLIC for each in public(module) for one in (each, *each.members)]
    told = {name for one in every for name in re.findall(r"^ +(\w+Error): ", one.about, re.M)}
    assert "UserError" in told
    assert told - set(PUBLIC["headrace.errors"]) == set()


def test_sections_of_docstrings_become_lists():
    about = "Does it.\n\nArgs:\n    one: The first,\n        at length.\n    two: The second.\n"
    shown = "Does it.\n\n**Args**\n\n- `one`: The first, at length.\n- `two`: The second."
    assert rendered(about) == shown
