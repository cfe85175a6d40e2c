"""Where a dotted name is defined and what that derives from, read from source, never imported.

A module is found as Python finds it, parsed, and its imports are followed. Whatever source alone
does not settle (compiled modules, decorators, names bound twice, metaclasses) is unknown: `None`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headrace.errors import TargetError, nearest

MAX_HOPS = 20
"""Imports or bases that are followed."""
_DYNAMIC = frozenset(
    (
        "*",
        "__getattr__",
        "__path__",
        "globals",
        "vars",
        "exec",
        "eval",
        "setattr",
        "locals",
    )
)
"""Names by which a module can have others that its source does not show."""

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class _Module:
    """A module on disk."""

    name: str
    file: Path
    """Source; of a package its `__init__.py`."""

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py"

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.file.read_bytes(), str(self.file))

    def bindings(self, name: str) -> list[ast.AST]:
        """All places at the level of the module that bind a name, in branches as well."""
        return [node for node in scope(self.tree) if name in bound_by(node)]

    @property
    def is_closed(self) -> bool:
        """Whether its source shows all names that it has."""
        bound = {name for node in scope(self.tree) for name in bound_by(node)}
        used = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        used |= {node.attr for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)}
        is_dynamic = any(map(_is_dynamic, ast.walk(self.tree)))
        return not is_dynamic and not (bound | used) & _DYNAMIC

    def may_get(self, name: str) -> bool:
        """Whether another module of its package seems to give it a name, as for what is renamed."""
        top = self.file
        while (top.parent / "__init__.py").is_file():
            top = top.parent
        given = re.compile(rf"\.{re.escape(name)}\s*=[^=]|setattr".encode())
        contents = (file.read_bytes() for file in top.rglob("*.py") if file != self.file)
        return any(name.encode() in content and given.search(content) for content in contents)

    def nearest(self, name: str) -> str:
        """Hint that names the nearest of the classes, functions and modules in it."""
        shown = [node for node in self.tree.body if isinstance(node, _Scope | ast.ImportFrom)]
        names = {name for node in shown for name in bound_by(node)} - {"annotations"}
        if self.is_package:
            names |= {file.stem for file in self.file.parent.glob("*.py")}
        public = sorted(each for each in names if not each.startswith("_"))
        return f"{nearest(name, public)} They are in {self.file}."

    def absolute(self, node: ast.ImportFrom) -> str:
        """Full name of the module that a `from … import` names."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*base, *([node.module] if node.module else [])])


@dataclass(frozen=True)
class Definition:
    """A class or function in its module."""

    module: _Module
    node: _Scope

    @property
    def is_function(self) -> bool:
        """Whether it is no class."""
        return not isinstance(self.node, ast.ClassDef)


def definition(name: str, folders: Sequence[Path], hops: int = MAX_HOPS) -> Definition | None:
    """Where a dotted name is defined; None where source does not tell.

    Args:
        name: Such as `my_package.models.Classifier`.
        folders: Where modules are looked for, first match wins.
        hops: Imports that are followed.

    Raises:
        TargetError: Its module is there and has no such name.
        SyntaxError: Its module cannot be parsed by this Python.
    """
    found = _module_of(name.split("."), folders)
    if found is None or hops == 0:
        return None
    module, rest = found
    try:
        return _defined_in(module, rest, folders, hops)
    except (OSError, ValueError, RecursionError):  # it cannot be read here
        return None


def derives_from(
    found: Definition, name: str, folders: Sequence[Path], hops: int = MAX_HOPS
) -> bool | None:
    """Whether a class is one of that name or has it among its bases; None where source is silent.

    Args:
        found: The class, or a function, which never is.
        name: Name of the base class, without its module.
        folders: Where modules are looked for.
        hops: Bases that are followed.
    """
    node = found.node
    if not isinstance(node, ast.ClassDef):
        return False
    if node.name == name:
        return True
    if node.decorator_list or node.keywords or hops == 0:
        return None
    own = [base for base in node.bases if dotted(base) != "object"]
    bases = [base_of(found.module, base, folders, hops) for base in own]
    told = [None if each is None else derives_from(each, name, folders, hops - 1) for each in bases]
    return True if True in told else None if None in told else False


def _module_of(parts: Sequence[str], folders: Sequence[Path]) -> tuple[_Module, list[str]] | None:
    """The longest module that a name begins with, and the rest of the name."""
    module: _Module | None = None
    for index, part in enumerate(parts):
        found = _in_folders(part, folders)
        if found is None:
            is_there = any(_may_hold(folder, part) for folder in folders)
            return None if module is None or is_there else (module, list(parts[index:]))
        module = _Module(".".join(parts[: index + 1]), found)
        if not module.is_package:
            return module, list(parts[index + 1 :])
        folders = (found.parent,)
    return None  # the name of a package


def _in_folders(part: str, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        for file in (folder / part / "__init__.py", folder / f"{part}.py"):
            if file.is_file():
                return file
        if any(folder.glob(f"{part}.*")):
            return None  # compiled, or of another kind
    return None


def _may_hold(folder: Path, part: str) -> bool:
    """Whether a folder has a module of that name without source."""
    return (folder / part).exists() or any(folder.glob(f"{part}.*"))


def _defined_in(
    module: _Module, rest: Sequence[str], folders: Sequence[Path], hops: int
) -> Definition | None:
    if not rest:
        return None
    name = rest[0]
    bindings = module.bindings(name)
    if not bindings and module.is_closed and not module.may_get(name):
        raise TargetError(f"'{module.name}.{name}' does not exist", module.nearest(name))
    if len(rest) > 1:
        return None  # of a class
    if len(bindings) != 1 or bindings[0] not in module.tree.body:
        return None
    (node,) = bindings
    if isinstance(node, ast.ImportFrom):
        original = next(a.name for a in node.names if (a.asname or a.name) == name)
        return _quietly(f"{module.absolute(node)}.{original}", folders, hops - 1)
    return Definition(module, node) if isinstance(node, _Scope) else None


def _quietly(name: str, folders: Sequence[Path], hops: int) -> Definition | None:
    """The definition of a name that others wrote: their mistakes are for Python to tell."""
    try:
        return definition(name, folders, hops)
    except (TargetError, SyntaxError):
        return None


def base_of(
    module: _Module, base: ast.expr, folders: Sequence[Path], hops: int
) -> Definition | None:
    """The definition of a base class: `Name`, or `module.Name` of an imported module."""
    first, _, rest = dotted(base).partition(".")
    if not rest:
        return _quietly(f"{module.name}.{first}", folders, hops - 1) if first else None
    bindings = module.bindings(first)
    if len(bindings) != 1 or not isinstance(bindings[0], ast.Import | ast.ImportFrom):
        return None
    node = bindings[0]
    alias = next(a for a in node.names if first in (a.asname, a.name.partition(".")[0]))
    inside = f"{module.absolute(node)}." if isinstance(node, ast.ImportFrom) else ""
    original = alias.name if alias.asname or inside else first
    return _quietly(f"{inside}{original}.{rest}", folders, hops - 1)


def dotted(node: ast.expr) -> str:
    """`a.b` as it stands in source; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def scope(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in a module or class itself, not in the functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _Scope | ast.Lambda):
            yield from scope(child)


def _is_dynamic(node: ast.AST) -> bool:
    """Whether it may bind names of the module from a function, or put another in its place."""
    is_entry = isinstance(node, ast.Subscript) and dotted(node.value).endswith("modules")
    return is_entry or isinstance(node, ast.Global)


def bound_by(node: ast.AST) -> set[str]:
    """Names that a statement or expression binds."""
    if isinstance(node, _Scope):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return {node.id}
    return set()
