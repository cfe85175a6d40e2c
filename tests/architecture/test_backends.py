"""A backend is a file: nothing outside it asks which backend it has before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from headrace.recipe.backend import Backend, backend_of, known_backends
from support.sources import product_modules, relative

OWN = (
    "pipelines/headrace_ec2/",
    "pipelines/headrace_queues/",
    "pipelines/headrace/runs/ec2_places.py",
)


def test_no_backend_is_named_in_a_condition():
    names = set(known_backends())
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in product_modules()
        if not str(relative(path)).startswith(OWN)
        for node in conditions(ast.parse(path.read_text()))
        if names & set(texts(node))
    ]
    assert found == []


def conditions(tree: ast.AST) -> Iterator[ast.Compare | ast.MatchValue]:
    """Comparisons that have to do with something called backend."""
    for node in ast.walk(tree):
        if (isinstance(node, ast.Compare) and "backend" in ast.unparse(node)) or isinstance(
            node, ast.MatchValue
        ):
            yield node


def texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def test_a_condition_is_found():
    tree = ast.parse("if role.backend in ('slurm', 'pbs') or x == 'ec2': pass")
    assert [set(texts(each)) for each in conditions(tree)] == [{"slurm", "pbs"}]


def test_every_backend_says_what_it_is():
    assert all(issubclass(backend_of(name), Backend) for name in known_backends())
    assert {"local", "slurm", "ssh", "ec2", "pbs", "sge", "lsf"} <= set(known_backends())
