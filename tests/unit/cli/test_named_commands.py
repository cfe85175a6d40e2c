"""What errors and pages of the UI tell users to type is there."""

from __future__ import annotations

import re
from typing import Any

from typer.main import get_command

from headrace.cli.commands import build
from support.sources import product_modules, relative

_NAMED = re.compile(r"`headrace ([a-z]+)(?: ([a-z]+))?")


def test_commands_that_messages_name_exist():
    commands = get_command(build()).commands  # type: ignore[attr-defined]
    wrong = [
        f"{relative(path)}: {match[0]}`"
        for path in product_modules()
        for match in _NAMED.finditer(path.read_text())
        if not _exists(commands, match[1], match[2])
    ]
    assert wrong == []


def _exists(commands: dict[str, Any], name: str, word: str | None) -> bool:
    command = commands.get(name)
    if command is None or word is None:
        return command is not None
    inner = getattr(command, "commands", None)
    if inner is not None:
        return word in inner
    return any(each.param_type_name == "argument" for each in command.params)
