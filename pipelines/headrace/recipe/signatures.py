"""What a class or function may be called with, from source; `None` where that does not tell."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.recipe.definitions import MAX_HOPS, Definition, base_of, bound_by, dotted, scope


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Arguments that a callable takes by name."""

    names: tuple[str, ...]
    """In the order of the source."""
    required: tuple[str, ...]
    """Those without a default."""
    takes_any: bool
    """Whether it takes further ones."""


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
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return None
    given = node.args
    places = [*given.posonlyargs, *given.args]
    if num_bound and not places:
        return None  # `self` is in `*args`
    with_default = len(given.defaults)
    needed = {each.arg for each in places[: len(places) - with_default]}
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    needed |= {each.arg for each, default in pairs if default is None}
    named = [each.arg for each in [*places[num_bound:], *given.kwonlyargs]]
    if given.posonlyargs[num_bound:]:
        return None
    return Signature(
        names=tuple(named),
        required=tuple(name for name in named if name in needed),
        takes_any=given.kwarg is not None,
    )
