"""Commands of `headrace` in this process; their application is built once, which takes time."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
from typer.main import get_command

from headrace.cli.commands import build
from headrace.errors import HeadraceError


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """All that it printed; standard error comes last."""
        return self.stdout + self.stderr


@functools.cache
def _command() -> Any:
    return get_command(build())


def every_command() -> Iterator[tuple[str, Any]]:
    """All commands, and groups that do something by themselves, by their words."""
    return _below(_command(), ())


def _below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner or command.params:
        yield " ".join(path), command
    for name, each in inner.items():
        yield from _below(each, (*path, name))


def refusal(*arguments: str) -> HeadraceError:
    """Run a command that cannot be done; what it raises for its user. It prints nothing before."""
    stdout = io.StringIO()
    with redirect_stdout(stdout), pytest.raises(HeadraceError) as raised:
        _command()(args=list(arguments), prog_name="headrace")
    assert stdout.getvalue() == ""
    return raised.value


def on_a_terminal(*arguments: str) -> str:
    """What a command shows on a terminal of 80 columns without colours and cursor."""
    plain = mock.patch.dict(os.environ, FORCE_COLOR="1", TERM="dumb")
    with plain:
        done = headrace(*arguments, columns=80)
    assert done.exit_code == 0, done.output
    return done.stdout


def headrace(*arguments: str, columns: int = 400) -> Ended:
    """Run a command; what it raises for its user comes out as it is.

    Args:
        arguments: Words after `headrace`.
        columns: Width of what it prints.
    """
    stdout, stderr, exit_code = io.StringIO(), io.StringIO(), 0
    width = mock.patch.dict(os.environ, COLUMNS=str(columns))
    with width, redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            _command()(args=list(arguments), prog_name="headrace")
        except SystemExit as end:
            exit_code = int(end.code or 0)
    return Ended(exit_code, stdout.getvalue(), stderr.getvalue())
