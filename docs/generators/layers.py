"""The layers of the engine as import-linter checks them, and the packages beside it."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BLOCK = re.compile(r"(?<=<!-- layers -->\n).*?(?=<!-- /layers -->)", re.DOTALL)
_FOLDERS = ("pipelines", "plugins")
_WIDTH = 14


def with_layers(text: str, root: Path) -> str:
    """Return a page whose block between `<!-- layers -->` and `<!-- /layers -->` shows the code.

    Layers, packages and rules are those of the contracts in `pyproject.toml`; what a package holds
    is the first line of its docstring.

    Args:
        text: The page.
        root: Folder of the repository.
    """
    linter = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    first, *others = linter["contracts"]
    engine, *beside = linter["root_packages"]
    layers = [_layer(line, root / "pipelines" / engine) for line in first["layers"]]
    packages = [f"| `{name}` | {_summary(_package(name, root))} |" for name in beside]
    rules = [f"- {each['name']}." for each in others]
    shown = [
        *("```text", *layers, "```", ""),
        *("| package beside the engine | what it holds |", "|---|---|", *packages, ""),
        *rules,
    ]
    return _BLOCK.sub(lambda _: "\n".join(shown) + "\n", text)


def _layer(line: str, folder: Path) -> str:
    """A line for each package of a layer; further ones of the same layer begin with a bar."""
    names = line.split(" | ")
    marked = (f"| {name}" if name != names[0] else name for name in names)
    pairs = zip(marked, names, strict=True)
    return "\n".join(f"{mark:{_WIDTH}} {_summary(folder / name)}" for mark, name in pairs)


def _package(name: str, root: Path) -> Path:
    """Where a package lies."""
    (found,) = (root / each / name for each in _FOLDERS if (root / each / name).is_dir())
    return found


def _summary(module: Path) -> str:
    """First line of the docstring of a package or module."""
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return docstring.partition("\n")[0]
