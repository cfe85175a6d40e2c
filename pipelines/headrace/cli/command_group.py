"""All commands by name: a command is imported when it is called; lists need only this data.

So help, completion and short commands do not import what the long ones need.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from headrace.entry_points import load_group
from headrace.errors import UserError

_MARKUP: Literal["markdown"] = "markdown"


@dataclass(frozen=True)
class Command:
    """A command or a group of commands that is not imported yet."""

    panel: str
    """Section of the help that lists it."""
    target: str
    """Its place as `module:name`: a function, or a `typer.Typer` for a group."""
    summary: str
    """Its purpose in a line: the first line of its docstring."""

    def listed(self, name: str) -> TyperCommand:
        """Return the command as lists need it, without importing it."""
        return TyperCommand(
            name=name, help=self.summary, rich_markup_mode=_MARKUP, rich_help_panel=self.panel
        )

    def loaded(self, name: str) -> Any:
        """Import and return the command itself."""
        module, _, attribute = self.target.partition(":")
        found = getattr(import_module(module), attribute)
        if not gc.isenabled():  # disabled by `app.main`
            gc.freeze()
            gc.enable()
        app = typer.Typer(rich_markup_mode=_MARKUP, add_completion=False)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
        part_examples(app)
        command: Any = get_group(app).commands[name]
        command.rich_help_panel = self.panel
        return command


class _LazyCommands(Mapping[str, Any]):
    """Commands by name, imported when they are looked up, except while they are listed."""

    def __init__(self, group: str, own: Mapping[str, Command]) -> None:
        self.group, self.own, self.are_listed = group, own, False

    def known(self) -> Mapping[str, Command]:
        """Return headrace's own commands, then those of other packages, which replace none.

        Raises:
            UserError: An entry point of a package is not a mapping.
        """
        found = dict(self.own)
        for name, added in load_group(self.group).items():
            if not isinstance(added, Mapping):
                raise UserError(
                    f"The entry point '{name}' of {self.group} is a {type(added).__name__}; it "
                    "has to be a mapping of names to `Command`",
                    "See docs/how-to/extend.md, or remove the package that adds it.",
                )
            found |= {each: added[each] for each in added if each not in found}
        return found

    def __getitem__(self, name: str) -> Any:
        if self.are_listed:
            return self.known()[name].listed(name)
        # headrace's own commands need no other packages
        command = self.own.get(name) or self.known()[name]
        return command.loaded(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.known())

    def __len__(self) -> int:
        return len(self.known())


class CommandGroup(TyperGroup):
    """A group of lazily imported commands; a subclass defines which."""

    group: str
    """Group of entry points of other packages: each a mapping, in a module that imports little."""
    own: Mapping[str, Command]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._all = _LazyCommands(self.group, self.own)
        self.commands = self._all  # type: ignore[assignment]

    def list_commands(self, _context: Any) -> list[str]:
        """Return the names in the order of the help."""
        return list(self._all)

    def format_help(self, *arguments: Any) -> None:
        """Write the help."""
        with self._listing():
            super().format_help(*arguments)

    def shell_complete(self, *arguments: Any) -> Any:
        """Return the names that begin with the incomplete text."""
        with self._listing():
            return super().shell_complete(*arguments)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._all.are_listed = True
        try:
            yield
        finally:
            self._all.are_listed = False


def part_examples(app: typer.Typer) -> None:
    """Put each example of a help on its own line: they are a block of code in Markdown."""
    for part in (*app.registered_commands, app.registered_callback):
        if part is None or part.callback is None:
            continue
        before, title, examples = (inspect.getdoc(part.callback) or "").partition("Examples:\n")
        lines = [line.strip() for line in examples.splitlines() if line.strip()]
        if lines:
            part.help = "\n".join((before + title, "```text", *lines, "```"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            part_examples(group.typer_instance)
