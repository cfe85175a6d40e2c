"""Where a dotted name is defined and what it takes, read from source, never imported.

A module is found as Python finds it, parsed, and its imports are followed. Whatever source alone
does not show (compiled modules, decorators, names bound twice, metaclasses) is unknown: `None`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import invalidate_caches
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

from headrace.errors import TargetError, nearest

_MAX_HOPS = 20
"""Imports or bases that are followed."""
_DYNAMIC = re.compile(
    r"\b(globals|vars|locals|exec|eval|setattr)\(|\bglobal \w|\bmodules\[|\bimport \*"
    r"|\b(__getattr__|__path__)\b"
)
"""What may give a module names that its source does not show, or put another in its place."""
_KEEP_SIGNATURE = frozenset(("_defaults_from_env_vars",))
"""Decorators after which a function takes the same arguments: that of Lightning's Trainer."""
_HOMES = {"torch.nn.Module": "torch.nn.modules.module.Module"}
"""Modules of classes that a package gives by `import *`."""
_PLAIN = frozenset(("int", "float", "bool", "str"))

_Callable = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Arguments that a callable takes by name."""

    names: tuple[str, ...] = ()
    """In the order of the source."""
    required: tuple[str, ...] = ()
    """Those without a default."""
    takes_any: bool = False
    """Whether it takes further ones."""
    types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Plain types of those that are annotated with some."""
    numbers: frozenset[str] = frozenset()
    """Those without annotation whose default is a number."""


@dataclass(frozen=True)
class _Module:
    name: str
    file: Path

    @cached_property
    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py"

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.file))

    @cached_property
    def bindings(self) -> Mapping[str, list[ast.AST]]:
        """What binds each name outside of functions and classes, in branches as well."""
        return bindings_in(self.tree)

    def lacks(self, name: str) -> bool:
        """Whether nothing in it, nor in another module of its package, seems to bind a name."""
        return not (name in self.bindings or _DYNAMIC.search(self.text) or self._may_get(name))

    def _may_get(self, name: str) -> bool:
        top = self.file
        while (top.parent / "__init__.py").is_file():
            top = top.parent
        given = re.compile(rf"\.{re.escape(name)}\s*=[^=]|setattr".encode())
        contents = (file.read_bytes() for file in top.rglob("*.py") if file != self.file)
        return any(name.encode() in content and given.search(content) for content in contents)

    def nearest(self, name: str) -> str:
        """Hint that names the nearest of the classes, functions and modules in it."""
        shown = [node for node in self.tree.body if isinstance(node, _Callable | ast.ImportFrom)]
        names = {each for node in shown for each in _names_bound_by(node)} - {"annotations"}
        if self.is_package:
            names |= {file.stem for file in self.file.parent.glob("*.py")}
        public = [each for each in names if not each.startswith("_")]
        return f"{nearest(name, public)} They are in {self.file}."

    def imported(self, node: ast.Import | ast.ImportFrom, name: str) -> str:
        """Full dotted name of what an import binds to a name."""
        alias = next(each for each in node.names if name == _bound_by(each))
        if isinstance(node, ast.Import):
            return alias.name if alias.asname else name
        parts = self.name.split(".")
        num_kept = len(parts) - node.level + self.is_package
        above = parts[:num_kept] if node.level else []
        return ".".join([*above, *filter(None, [node.module]), alias.name])


@dataclass(frozen=True)
class Definition:
    """A class or function in its module."""

    module: _Module
    node: _Callable


class SourceCode:
    """Modules of some folders, then of other finders of this process if it `finds_installed`."""

    def __init__(self, folders: Sequence[Path], *, finds_installed: bool = False) -> None:
        self.folders = [str(folder) for folder in folders]
        self._finds_installed = finds_installed
        invalidate_caches()

    def definition(self, name: str) -> Definition | None:
        """Where a dotted name is defined; None where source does not tell.

        Raises:
            TargetError: Its module is there and has no such name.
            SyntaxError: Its module cannot be parsed by this Python.
        """
        found = self._named(_HOMES.get(name, name))
        for _ in range(_MAX_HOPS):
            if not isinstance(found, str):
                return found
            try:
                found = self._named(found)
            except (TargetError, SyntaxError):  # of others: for Python to tell
                return None
        return None

    def find(self, top: str) -> ModuleSpec | None:
        """Return the specification of a top-level module; None if there is none."""
        found = PathFinder.find_spec(top, self.folders)
        return found or (find_spec(top) if self._finds_installed else None)

    def derives_from(self, found: Definition, name: str) -> bool | None:
        """Whether a class is one of that name or has it among its bases; None if unknown.

        The name is without its module. A function never does.
        """
        lineage = list(self.lineage(found, end=name))
        if any(each is not None and each.node.name == name for each in lineage):
            return True
        return None if None in lineage else False

    def lineage(self, found: Definition, end: str = "") -> Iterator[Definition | None]:
        """Yield a class and its bases, but not those of a class named `end`; None for unknown ones.

        A function is alone.
        """
        waiting: list[Definition | None] = [found]
        for each in waiting:
            yield each
            if each is None or len(waiting) > _MAX_HOPS:
                yield None
                return
            if isinstance(each.node, ast.ClassDef) and each.node.name != end:
                names = [ast.unparse(base) for base in each.node.bases]
                is_plain = not (each.node.decorator_list or each.node.keywords)
                known = [self._base(each.module, name) for name in names if name != "object"]
                waiting += known if is_plain else [None]

    def signature(self, found: Definition) -> Signature | None:
        """What a class or function may be called with; None where source does not tell."""
        if not isinstance(found.node, ast.ClassDef):
            return _of_function(found.node, num_bound=0)
        for each in self.lineage(found):
            node = None if each is None else each.node
            if not isinstance(node, ast.ClassDef) or node.decorator_list or node.keywords:
                return None
            own = bindings_in(node)
            made_by = own.get("__init__", [])
            if made_by or "__new__" in own:
                is_plain = len(made_by) == 1 and made_by[0] in node.body and "__new__" not in own
                return _of_function(made_by[0], num_bound=1) if is_plain else None
            if len(node.bases) > 1:
                return None  # an order of many bases is not for source alone
        return Signature()

    def _base(self, module: _Module, name: str) -> Definition | None:
        first, dot, rest = name.partition(".")
        full = f"{module.name}.{name}"
        if dot:
            bindings = module.bindings.get(first, [])
            if len(bindings) != 1 or not isinstance(bindings[0], ast.Import | ast.ImportFrom):
                return None
            full = f"{module.imported(bindings[0], first)}.{rest}"
        try:
            return self.definition(full)
        except (TargetError, SyntaxError):
            return None

    def _named(self, name: str) -> Definition | str | None:
        """A definition, or the name under which another module has it."""
        module, rest = self._module_of(name.split("."))
        if module is None or not rest:
            return None
        try:
            if module.lacks(rest[0]):
                missing = f"'{module.name}.{rest[0]}' does not exist"
                raise TargetError(missing, module.nearest(rest[0]))
            bindings = module.bindings.get(rest[0], [])
        except (OSError, ValueError, RecursionError):  # it cannot be read here
            return None
        stars = [each for each in module.bindings.get("*", ()) if isinstance(each, ast.ImportFrom)]
        if not bindings and len(stars) == 1:
            return f"{module.imported(stars[0], '*')[:-1]}{'.'.join(rest)}"
        if len(rest) > 1 or len(bindings) != 1 or bindings[0] not in module.tree.body:
            return None  # of a class, or bound in a branch
        node = bindings[0]
        if isinstance(node, ast.ImportFrom):
            return module.imported(node, rest[0])
        return Definition(module, node) if isinstance(node, _Callable) else None

    def _module_of(self, parts: Sequence[str]) -> tuple[_Module | None, Sequence[str]]:
        """The longest module that a name begins with, and the rest of the name."""
        module: _Module | None = None
        folders: Sequence[str] | None = self.folders
        for index, part in enumerate(parts):
            spec = PathFinder.find_spec(part, folders) if index else self.find(part)
            if spec is None:
                return module, parts[index:]
            if not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
                break  # compiled, or a folder without `__init__.py`
            name, status = ".".join(parts[: index + 1]), Path(spec.origin).stat()
            module = _module(name, spec.origin, status.st_mtime_ns, status.st_size)
            folders = spec.submodule_search_locations
            if folders is None:
                return module, parts[index + 1 :]
        return None, ()  # the name of a package


def installed() -> list[Path]:
    """Return the folders from which this process imports modules."""
    return [path for path in map(Path, sys.path) if path.is_dir()]


def trainer_arguments() -> tuple[str, ...]:
    """Return the names of the arguments of Lightning's Trainer; empty if it is not installed."""
    code = SourceCode(installed())
    found = code.definition("lightning.pytorch.Trainer")
    takes = None if found is None else code.signature(found)
    return () if takes is None else takes.names


@lru_cache(maxsize=64)
def _module(name: str, file: str, _mtime_ns: int, _num_bytes: int) -> _Module:
    """A module as it is now: parsing takes longer than to see whether it has changed."""
    return _Module(name, Path(file))


def hidden(folders: Sequence[Path], top: str = "*") -> Iterator[str]:
    """Yield a message for each module of code folders that Python or a package hides."""
    for folder in folders:
        for own in sorted((*folder.glob(f"{top}.py"), *folder.glob(f"{top}/__init__.py"))):
            name = own.stem if own.parent == folder else own.parent.name
            found = None if name.startswith("__") else PathFinder.find_spec(name)
            is_inside = name in sys.builtin_module_names
            origin = "a module inside Python" if is_inside else found and found.origin
            if origin and Path(origin).resolve() != own.resolve():
                yield f"{own} is hidden by {origin}, which has the same name: rename it"


def bindings_in(scope: ast.AST) -> dict[str, list[ast.AST]]:
    """What binds names in a module or class itself, not in the functions and classes in it."""
    found: dict[str, list[ast.AST]] = {}
    waiting = list(ast.iter_child_nodes(scope))
    for node in waiting:
        for name in _names_bound_by(node):
            found.setdefault(name, []).append(node)
        if not isinstance(node, _Callable | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return found


def _names_bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, _Callable):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [_bound_by(alias) for alias in node.names]
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    return []


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _of_function(node: ast.AST, num_bound: int) -> Signature | None:
    if not isinstance(node, ast.FunctionDef):
        return None
    if not {ast.unparse(each) for each in node.decorator_list} <= _KEEP_SIGNATURE:
        return None
    given = node.args
    places = [*given.posonlyargs, *given.args]
    if len(places) < num_bound or given.posonlyargs[num_bound:]:
        return None  # `self` is in `*args`
    without_default: list[ast.expr | None] = [None] * (len(places) - len(given.defaults))
    taken = [*places, *given.kwonlyargs][num_bound:]
    defaults = [*without_default, *given.defaults, *given.kw_defaults][num_bound:]
    arguments = list(zip(taken, defaults, strict=True))
    return Signature(
        names=tuple(each.arg for each in taken),
        required=tuple(each.arg for each, default in arguments if default is None),
        takes_any=given.kwarg is not None,
        types={each.arg: _plain_types(each.annotation) for each in taken},
        numbers=frozenset(
            each.arg
            for each, default in arguments
            if not each.annotation and type(getattr(default, "value", None)) in (int, float)
        ),
    )


def _plain_types(annotation: ast.expr | None) -> frozenset[str]:
    """Names of the plain types that an annotation allows; empty where it says another thing."""
    text = "" if annotation is None else ast.unparse(annotation).strip("'\"")
    members = re.sub(r"(\w+\.)*(Optional|Union)\[", "", text).replace("]", "")
    parts = set(re.split(r"\s*[|,]\s*", members))
    return frozenset(parts - {"None"}) if parts <= {*_PLAIN, "None"} else frozenset()
