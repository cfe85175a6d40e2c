"""What errors, pages of the UI and the docs tell users to type is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from headrace.cli.commands import build
from support.sources import product_modules, project_files, relative

_NAMED = re.compile(r"`headrace ([a-z][a-z0-9-]*)(?: ([a-z][a-z0-9-]*))?")


def test_commands_that_messages_and_docs_name_exist():
    commands = get_command(build()).commands  # type: ignore[attr-defined]
    wrong = [
        f"{relative(path)}: {match[0]}`"
        for path in (*product_modules(), *_pages())
        for match in _NAMED.finditer(path.read_text())
        if not _exists(commands, match[1], match[2])
    ]
    assert wrong == []


def _pages() -> Iterator[Path]:
    """Pages that tell what is true now; decisions tell what was, and one page adds commands."""
    for path in project_files():
        is_now = "decisions" not in path.parts and path.name != "extend.md"
        if path.suffix == ".md" and is_now:
            yield path


def _exists(commands: dict[str, Any], name: str, word: str | None) -> bool:
    command = commands.get(name)
    if command is None or word is None:
        return command is not None
    inner = getattr(command, "commands", None)
    if inner is not None:
        return word in inner
    return any(each.param_type_name == "argument" for each in command.params)
