"""No files import each other in a circle: each can be read with what it imports, and no more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support.sources import product_modules, project_files, relative

_SCRIPT = re.compile(r"""^(?:import|export)\b[^;"']*["']\./([\w.-]+)["']""", re.MULTILINE)


def module_of(path: Path) -> str:
    """Return a Python file's module, as `headrace.files.atomic`."""
    _, *parts = relative(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield what a file imports, also in functions and for types only: modules and their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Return a circle of files that import each other; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imports_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the modules of `sources` that each of them imports."""
    found = {name: set(imported(ast.parse(text))) for name, text in sources.items()}
    return {name: (of & sources.keys()) - {name} for name, of in found.items()}


def test_no_modules_import_each_other():
    imports = imports_of({module_of(path): path.read_text() for path in product_modules()})
    assert len(imports) > 300
    assert circle(imports) == []


def test_no_scripts_of_the_pages_import_each_other():
    folder = Path("plugins/headrace_pages/static/js")
    scripts = [path for path in project_files() if relative(path).parent == folder]
    imports = {path.name: set(_SCRIPT.findall(path.read_text())) for path in scripts}
    assert imports["run.js"] > {"suite.js", "ui.js"}
    assert circle(imports) == []


@pytest.mark.parametrize("before", ["", "def f():\n    ", "if TYPE_CHECKING:\n    "])
@pytest.mark.parametrize("how", ["import a.one", "from a import one", "from a.one import x"])
def test_a_circle_is_found(before: str, how: str):
    sources = {"a": "", "a.one": "from a.two import x", "a.two": before + how, "a.three": how}
    assert set(circle(imports_of(sources))) == {"a.one", "a.two"}
