"""What holds for each module that users run, for all files, pins and messages."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from headrace.files.layout import LeaseFolder, StepFolder
from headrace.recipe.backend import Backend, backend_of, known_backends
from support.messages import FILE, REWRITE, all_messages
from support.sources import ROOT, product_modules, relative, texts

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
        elif is_about_a_backend(node) and backends & set(constants(node)):
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


def constants(node: ast.AST) -> Iterator[str]:
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


PYTHONS = [f"3.{minor}.{micro}" for minor in range(10, 14) for micro in range(20)]


def test_each_pin_is_for_pythons_that_can_install_it():
    """Debian 12 has Python 3.11.2, for which some packages are too new by their micro version."""
    pins = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    wrong = [
        f"{pin} on {python}: needs {needs}"
        for pin in pins
        if (needs := _required_python(pin)) is not None
        for python in PYTHONS
        if _applies(pin, python) and not needs.contains(python)
    ]
    assert len(pins) > 200
    assert wrong == []


def _required_python(pin: Requirement) -> SpecifierSet | None:
    """Return what the installed version of a pin asks of Python; None if another is installed."""
    try:
        installed = distribution(pin.name)
    except PackageNotFoundError:
        return None
    if not pin.specifier.contains(installed.version):
        return None
    return SpecifierSet(installed.metadata.get("Requires-Python") or "")


def _applies(pin: Requirement, python: str) -> bool:
    minor = python.rpartition(".")[0]
    environment = {"python_version": minor, "python_full_version": python}
    return pin.marker is None or pin.marker.evaluate(environment)


EXAMPLE_USERS = ("me", "you", "user", "runner")

FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.~}-])/(?:work|root|Users)/\w",
    "somebody's home folder": rf"(?<![\w.~}}-])/home/(?!(?:{'|'.join(EXAMPLE_USERS)})\b)\w+/",
    "a package index of somebody's own": r"(?i)https?://[^\s\"'<>)]*(?:artifactory|nexus|devpi)",
    "an address in a private network": r"\b(?:192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d+\b",
    "unfinished work": r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
}

VAGUE_NAMES = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str):
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts()
        if path != relative(Path(__file__))
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_no_file_has_a_vague_name():
    assert [path for path, _ in texts() if path.name in VAGUE_NAMES] == []


def test_files_of_leases_and_steps_are_looked_for_as_others_make_them():
    """`Path.exists` misses for half a minute what another client of NFS has made (see 0044)."""
    names = "|".join({*vars(LeaseFolder), *vars(StepFolder)} - {"log", "logs", "number", "step"})
    pattern = re.compile(rf"\.(?:{names})\.(?:exists|is_file)\(\)")
    found = [
        f"{relative(path)}: {match[0]}"
        for path in product_modules()
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []


def test_the_file_of_messages_is_up_to_date():
    assert FILE.read_text() == all_messages(), f"rewrite it: {REWRITE}"
