"""Detached runs: a command's process checks at its terminal, then continues without it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from headrace.cli.console import open_console, tell_json, with_handler
from headrace.execution.reap import end_run
from headrace.files.atomic import tolerating_storage
from headrace.processes.identity import tell_children
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.status.run_details import run_details

DetachOption = Annotated[
    bool, typer.Option("--detach", help="Check it here, print its id, and let it run without me.")
]
_LEFT = b"1"


class Detaching:
    """Separates a command from its terminal at the first call of `leave`, if that is wanted.

    A child does the command's work, so that it owns the run from the start. It has the terminal
    until it leaves; this process waits for that, then exits with 0. If the child ends before,
    errors are on the terminal as usual, and the exit code is the child's.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._writer = _fork() if wanted else None
        self.has_left = False
        """Whether this process has no terminal any more."""

    def leave(self, job: Run, *, as_json: bool = False) -> None:
        """Print the run's id, then how to attach; from now on all output goes to the run's log.

        Raises:
            OSError: The log cannot be written; the run has ended.
        """
        if self._writer is None or self.has_left:
            return
        log = job.folder.log
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(file, f"process {os.getpid()} continues without a terminal\n".encode())
        except OSError as error:
            with tolerating_storage("The end of the run is not recorded"):
                end_run(job, StepState.FAILED, f"its log cannot be written: {error}")
            raise
        if as_json:
            tell_json(run_details(job.run_id))
        else:
            typer.echo(job.run_id)
        _print_ways(job.run_id, log)
        self._drop_terminal(file)
        os.write(self._writer, _LEFT)
        os.close(self._writer)
        self.has_left = True

    def _drop_terminal(self, log: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, number)
        os.close(nothing)
        os.close(log)


def _print_ways(run_id: str, log: Path) -> None:
    console = open_console(stderr=True)
    console.print("It runs without this terminal.", soft_wrap=True)
    for what, way in (("watch", "attach"), ("stop", "cancel")):
        console.print(f"  {what}: headrace {way} {run_id}", soft_wrap=True)
    console.print(f"  log: {log}", soft_wrap=True)


def _fork() -> int:
    """Return, in a child, a pipe to write to after leaving; this process ends with the command."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        _wait(pid, reader)
    os.close(reader)
    tell_children()
    return writer


def _wait(pid: int, reader: int) -> NoReturn:
    def forward(number: int, _: object) -> None:
        if number != signal.SIGINT:  # a terminal sends it to the child, too
            os.kill(pid, number)

    with with_handler(forward, signal.SIGINT, signal.SIGTERM):
        if os.read(reader, 1) == _LEFT:
            raise typer.Exit
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    raise typer.Exit(code if code >= 0 else 128 - code)
