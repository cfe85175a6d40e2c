"""Detached runs: a command checks at its terminal, then its child continues without it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from headrace.cli.console import open_console, tell_json, with_handler
from headrace.processes.identity import tell_children
from headrace.runs.runs import Run
from headrace.status.run_details import run_details

DetachOption = Annotated[
    bool, typer.Option("--detach", help="Check it here, print its id, and let it run without me.")
]
_LEFT = b"1"


class Detaching:
    """Separates a command from its terminal at the first call of `leave`, if that is wanted.

    A child does the command's work, so that it owns the run from the start. This process waits
    until the child leaves, and exits with 0. If the child ends before, its errors are on the
    terminal, and this process exits with its code.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._writer = _fork() if wanted else None

    def leave(self, job: Run, *, as_json: bool = False) -> None:
        """Print the run's id, then how to attach; from now on all output goes to the run's log."""
        if self._writer is None:
            return
        log = os.open(job.folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if as_json:
            tell_json(run_details(job.run_id))
        else:
            typer.echo(job.run_id)
        open_console(stderr=True).print(
            f"It runs without this terminal.\n  watch: headrace attach {job.run_id}\n"
            f"  stop: headrace cancel {job.run_id}\n  log: {job.folder.log}",
            soft_wrap=True,
        )
        sys.stdout.flush()
        os.setsid()
        for source, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(source, number)
        os.write(self._writer, _LEFT)
        os.close(self._writer)
        self._writer = None


def _fork() -> int:
    """Return, in a child, a pipe to write to after leaving; this process ends with the command."""
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        os.close(reader)
        tell_children()
        return writer
    os.close(writer)

    def forward(number: int, _: object) -> None:
        if number != signal.SIGINT:  # a terminal sends it to the child, too
            os.kill(pid, number)

    with with_handler(forward, signal.SIGINT, signal.SIGTERM):
        if os.read(reader, 1) == _LEFT:
            raise typer.Exit
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    raise typer.Exit(code if code >= 0 else 128 - code)
