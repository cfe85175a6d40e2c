"""Hints of errors: all that a room's source holds, and mistakes that are mended as one says."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from support.sources import ROOT

ROOMS = ROOT / "pipelines" / "headrace"

State = Mapping[str, object]
"""Files by path, and keys that begin with that of a model (`dataset.format`); None takes one out.
A function is called, with the folder that all of a mistake lies in."""


class Hint(NamedTuple):
    """A hint in the source: `…` stands for what is filled in."""

    place: str
    what: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """An error, how one comes to it, and each way that its hint shows."""

    what: str
    """A piece of the error's sentence as it is in the source, without what is filled in."""
    hint: str
    """A piece of its hint as it is in the source, without what is filled in."""
    given: State
    followed: tuple[State, ...]
    """What is done, for each thing that the hint says; by any of them the error is gone."""
    before: State | None = None
    """What was fine before."""

    def __str__(self) -> str:
        return self.what.strip()


def hints_of(room: str) -> list[Hint]:
    """Every error of a room that is raised with a hint, in the order of its files."""
    files = sorted((ROOMS / room).rglob("*.py"))
    trees = {str(file.relative_to(ROOMS)): ast.parse(file.read_text()) for file in files}
    returns = {name: texts for tree in trees.values() for name, texts in texts_by_name(tree)}
    return [
        Hint(f"{name}:{call.lineno}", what, hint)
        for name, tree in trees.items()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and call_name(call).endswith("Error") and len(call.args) > 1
        for what in texts_of(call.args[0], returns)
        for hint in _told(set(texts_of(call.args[1], returns)))
    ]


def uncovered(
    hints: Iterable[Hint], mistakes: Iterable[Mistake], informational: Mapping[str, str]
) -> list[Hint]:
    """Hints that nobody follows, and that nothing says are no advice."""
    rows = list(mistakes)
    return [
        hint
        for hint in hints
        if hint.what not in informational
        and hint.hint not in informational
        and not any(row.what in hint.what and row.hint in hint.hint for row in rows)
    ]


def stale(
    hints: Iterable[Hint], mistakes: Iterable[Mistake], informational: Mapping[str, str]
) -> list[str]:
    """Rows that are about no hint any more."""
    known = list(hints)
    rows = [str(row) for row in mistakes if all(row.what not in hint.what for hint in known)]
    return rows + [text for text in informational if all(text not in hint for hint in known)]


def _told(hints: set[str]) -> list[str]:
    """Without those of which nothing is written in the source, where others are."""
    return sorted(hints - {"", "…"}) or sorted(hints - {""})


def texts_by_name(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    """What functions return, and what constants are."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            each = (one.value for one in ast.walk(node) if isinstance(one, ast.Return))
            yield node.name, [value for value in each if value is not None]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, [node.value]


def call_name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def texts_of(node: ast.expr, returns: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    """Texts that an expression may stand for."""
    if isinstance(node, ast.IfExp):
        yield from texts_of(node.body, returns)
        yield from texts_of(node.orelse, returns)
    elif isinstance(node, ast.BoolOp):
        for each in node.values:
            yield from texts_of(each, returns)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.Name) and node.id.isupper():
        yield from (text for each in returns[node.id] for text in texts_of(each, returns))
    elif isinstance(node, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
        yield "".join(map(str, parts))
    elif isinstance(node, ast.Call) and call_name(node) in returns:
        for each in returns[call_name(node)]:
            yield from texts_of(each, returns)
    else:
        yield "…"
