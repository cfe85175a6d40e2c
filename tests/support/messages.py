"""All messages of errors that the source holds: run as a program, it rewrites their file."""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from support.hints import call_name, texts_by_name, texts_of
from support.sources import ROOT, product_modules, relative

FILE = ROOT / "tests" / "architecture" / "messages.txt"
"""Each message with its next step, by room; `…` stands for what is filled in."""

REWRITE = "PYTHONPATH=tests .venv/bin/python -m support.messages"
"""Command that brings the file up to date."""

WIDTH = 100


def all_messages() -> str:
    """Return the text of the file as the source is now."""
    trees = {path: ast.parse(path.read_text()) for path in product_modules()}
    returns = {name: each for tree in trees.values() for name, each in texts_by_name(tree)}
    rooms: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path, tree in trees.items():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and call_name(call).endswith("Error") and call.args:
                rooms[_room(path)] |= set(_messages(call, returns))
            if isinstance(call, ast.FunctionDef) and _yields_problems(call):
                rooms[_room(path)] |= set(_yielded(call, returns))
    return "\n".join(
        f"# {room}\n" + "".join(_block(*message) for message in sorted(messages))
        for room, messages in sorted(rooms.items())
        if messages
    )


def _yields_problems(function: ast.FunctionDef) -> bool:
    return function.returns is not None and ast.unparse(function.returns) == "Problems"


def _yielded(
    function: ast.FunctionDef, returns: dict[str, list[ast.expr]]
) -> Iterator[tuple[str, str]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Yield) and node.value is not None:
            texts = texts_of(node.value, returns)
            yield from ((text, "") for text in texts if text.strip("… "))


def _messages(call: ast.Call, returns: dict[str, list[ast.expr]]) -> Iterator[tuple[str, str]]:
    hint = call.args[1] if len(call.args) > 1 else ast.Constant("")
    hints = sorted({*texts_of(hint, returns)} - {"…"}) or [""]
    for what in texts_of(call.args[0], returns):
        if what.strip("… "):
            yield from ((what, each) for each in hints)


def _block(what: str, hint: str) -> str:
    lines = textwrap.wrap(what, WIDTH, subsequent_indent="  ")
    lines += textwrap.wrap(hint, WIDTH, initial_indent="  > ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def _room(path: Path) -> str:
    return "/".join(relative(path).parts[1:3]).removesuffix(".py")


if __name__ == "__main__":
    FILE.write_text(all_messages())
