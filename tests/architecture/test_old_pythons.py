"""What old Pythons do differently, and no type checker sees."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from support.sources import ROOT, product_modules

HOME = "clusters/lifetime.py"


def caught(tree: ast.AST) -> Iterator[ast.expr]:
    """What is caught or suppressed, each type by itself."""
    for node in ast.walk(tree):
        types: list[ast.expr] = []
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            types = [node.type]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "suppress":
            types = node.args
        for each in types:
            yield from each.elts if isinstance(each, ast.Tuple) else [each]


def test_time_that_is_over_is_caught_by_both_names():
    """Before Python 3.11 asyncio, and so Dask, raises a type of its own."""
    bare = [
        f"{path.relative_to(ROOT)}:{each.lineno}"
        for path in product_modules()
        if not path.match(HOME)
        for each in caught(ast.parse(path.read_text()))
        if "TimeoutError" in ast.unparse(each)
    ]
    assert bare == [], f"catch TIMED_OUT of {HOME}"
