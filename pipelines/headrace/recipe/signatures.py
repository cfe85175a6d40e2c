"""What a class or function may be called with, from source; `None` where that does not tell."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.recipe.definitions import MAX_HOPS, Definition, base_of, bound_by, dotted, scope

_KEEP_SIGNATURE = frozenset(("_defaults_from_env_vars",))
"""Decorators after which a function takes the same arguments: that of Lightning's Trainer."""

_PLAIN = frozenset(("int", "float", "bool", "str"))
_UNIONS = ("Optional", "Union")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Arguments that a callable takes by name."""

    names: tuple[str, ...]
    """In the order of the source."""
    required: tuple[str, ...]
    """Those without a default."""
    takes_any: bool
    """Whether it takes further ones."""
    types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Plain types of those that are annotated with such."""
    numbers: frozenset[str] = frozenset()
    """Those without an annotation whose default is a number."""


def signature(found: Definition, folders: Sequence[Path]) -> Signature | None:
    """What a class or function may be called with; None where source does not tell."""
    if isinstance(found.node, ast.FunctionDef):
        return _of_function(found.node, num_bound=0)
    if isinstance(found.node, ast.ClassDef):
        return _of_class(found, folders, MAX_HOPS)
    return None


def _of_class(found: Definition, folders: Sequence[Path], hops: int) -> Signature | None:
    node = found.node
    if not isinstance(node, ast.ClassDef) or node.decorator_list or node.keywords or hops == 0:
        return None
    made_by = [each for each in scope(node) if {"__init__", "__new__"} & bound_by(each)]
    if len(made_by) == 1:
        (init,) = made_by
        is_plain = isinstance(init, ast.FunctionDef) and init.name == "__init__"
        return _of_function(init, num_bound=1) if is_plain and init in node.body else None
    if made_by or len(node.bases) > 1:
        return None  # an order of many bases is not for source alone
    if not node.bases or dotted(node.bases[0]) == "object":
        return Signature(names=(), required=(), takes_any=False)
    base = base_of(found.module, node.bases[0], folders, hops)
    return None if base is None else _of_class(base, folders, hops - 1)


def _of_function(node: ast.AST, num_bound: int) -> Signature | None:
    if not isinstance(node, ast.FunctionDef):
        return None
    if not {ast.unparse(each) for each in node.decorator_list} <= _KEEP_SIGNATURE:
        return None
    given = node.args
    places = [*given.posonlyargs, *given.args]
    if num_bound and not places:
        return None  # `self` is in `*args`
    with_default = len(given.defaults)
    needed = {each.arg for each in places[: len(places) - with_default]}
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    needed |= {each.arg for each, default in pairs if default is None}
    taken = [*places[num_bound:], *given.kwonlyargs]
    named = [each.arg for each in taken]
    if given.posonlyargs[num_bound:]:
        return None
    return Signature(
        names=tuple(named),
        required=tuple(name for name in named if name in needed),
        takes_any=given.kwarg is not None,
        types={each.arg: plain_types(each.annotation) for each in taken},
        numbers=_with_number(given) - {each.arg for each in taken if each.annotation},
    )


def _with_number(given: ast.arguments) -> frozenset[str]:
    """Arguments whose default is a number."""
    places = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(places[len(places) - len(given.defaults) :], given.defaults, strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    values = {
        each.arg: default.value for each, default in pairs if isinstance(default, ast.Constant)
    }
    return frozenset(name for name, value in values.items() if type(value) in (int, float))


def plain_types(annotation: ast.expr | None) -> frozenset[str]:
    """Names of the plain types that an annotation allows; empty where it says another thing."""
    parts = _parts(annotation)
    return frozenset(parts) - {"None"} if all(parts) else frozenset()


def _parts(node: ast.expr | None) -> list[str]:
    """Names of all members of a union; an empty one for what is no plain type."""
    if isinstance(node, ast.Constant) and node.value is None:
        return ["None"]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _parts(_parsed(node.value))
    if isinstance(node, ast.Name):
        return [node.id if node.id in _PLAIN else ""]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_parts(node.left), *_parts(node.right)]
    if isinstance(node, ast.Subscript) and _last_name(node.value) in _UNIONS:
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return [name for each in inner for name in _parts(each)]
    return [""]


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
