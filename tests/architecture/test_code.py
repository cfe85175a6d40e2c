"""What holds for each module that users run, seen in its syntax; all are parsed once."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

import pytest

from headrace.recipe.backend import Backend, backend_of, known_backends
from support.sources import product_modules, relative

MAX_FUNCTION_LINES = 60

OWN = ("pipelines/headrace_ec2/", "pipelines/headrace_queues/")
"""Code of backends, which may name them."""

HOME_OF_TIMED_OUT = "pipelines/headrace/clusters/lifetime.py"
"""Where it is said what is caught when a time is over."""

CLASS = "classes"
SILENT = "modules that do not say what they are for"
LONG = f"functions of more than {MAX_FUNCTION_LINES} lines"
BACKEND = "conditions that name a backend"
BARE = f"TIMED_OUT of {HOME_OF_TIMED_OUT} is to be caught instead: before Python 3.11 asyncio, and \
so Dask, raises a type of its own"


def findings(tree: ast.Module, file: str) -> Iterator[tuple[str, str]]:
    """All of a module that is looked for: what, and which."""
    if not ast.get_docstring(tree):
        yield SILENT, file
    backends = set() if file.startswith(OWN) else set(known_backends())
    for node in ast.walk(tree):
        place = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield CLASS, node.name
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > MAX_FUNCTION_LINES:
                yield LONG, f"{place} {node.name} ({num_lines})"
        elif is_about_a_backend(node) and backends & set(texts(node)):
            yield BACKEND, place
        elif file != HOME_OF_TIMED_OUT:
            for each in caught(node):
                if "TimeoutError" in ast.unparse(each):
                    yield BARE, place


def is_about_a_backend(node: ast.AST) -> bool:
    """Whether it compares something called backend."""
    return isinstance(node, ast.MatchValue) or (
        isinstance(node, ast.Compare) and "backend" in ast.unparse(node)
    )


def texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def caught(node: ast.AST) -> Iterator[ast.expr]:
    """What is caught or suppressed, each type by itself."""
    types: list[ast.expr] = []
    if isinstance(node, ast.ExceptHandler) and node.type is not None:
        types = [node.type]
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "suppress":
        types = node.args
    for each in types:
        yield from each.elts if isinstance(each, ast.Tuple) else [each]


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """What of all modules was found."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in product_modules():
        for what, which in findings(ast.parse(path.read_text()), str(relative(path))):
            found[what].append(which)
    return found


@pytest.mark.parametrize("what", [SILENT, LONG, BACKEND, BARE])
def test_there_are_none(found: dict[str, list[str]], what: str):
    assert found.get(what, []) == []


def test_no_two_classes_have_one_name(found: dict[str, list[str]]):
    """Nobody has to ask which of two is meant."""
    names = found[CLASS]
    assert len(names) > 100
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("if role.backend in ('slurm', 'pbs') or x == 'ec2': pass", BACKEND),
        ("try: pass\nexcept (OSError, asyncio.TimeoutError): pass", BARE),
        ("with suppress(TimeoutError): pass", BARE),
        ("def f():" + "\n  1" * MAX_FUNCTION_LINES, LONG),
    ],
)
def test_it_is_found(code: str, what: str):
    assert [each for each, _ in findings(ast.parse(f"'It.'\n{code}"), "a.py")] == [what]
    assert [each for each, _ in findings(ast.parse(""), "a.py")] == [SILENT]


def test_every_backend_says_what_it_is():
    assert all(issubclass(backend_of(name), Backend) for name in known_backends())
    assert {"local", "slurm", "ssh", "ec2", "pbs", "sge", "lsf"} <= set(known_backends())
