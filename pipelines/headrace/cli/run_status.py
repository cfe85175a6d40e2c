"""State of one run, and the logs of its processes: status, logs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.arguments import RunArgument
from headrace.cli.console import JsonOption, open_console, output_is_gone, tell_json
from headrace.cli.view import print_failures
from headrace.cli.watching import REFRESH_S, end_of, look
from headrace.cli.watching import watch as follow
from headrace.errors import UnknownNameError, nearest
from headrace.runs.names import named, there
from headrace.status.logs import log_files
from headrace.status.run import RunRows
from headrace.status.run_details import run_details


def status(
    run_id: RunArgument = None,
    watch: Annotated[bool, typer.Option(help="Until the run ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run's state: steps, progress, rate, time left.

    A suite shows its trials by state. With **--watch** the state is shown until the run ends: as a
    table, or as lines if the output is not a terminal.

    Examples:
        headrace status
        headrace status digits-20260102-030405-0a1b2c3d --watch
        headrace status digits-sweep-20260102-030405-0a1b2c3d:7
        headrace status --json
    """
    known = named(run_id).name
    console = open_console()
    if as_json:
        tell_json(run_details(known))
        return
    if watch:
        follow(known, console)
    view = run_details(known)
    console.print(end_of(view) if view.state.is_final else look(view))
    print_failures(view, console)


def logs(
    run_id: RunArgument = None,
    step: Annotated[str | None, typer.Argument(help="Only this step.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines, too.")] = False,
) -> None:
    """Print the logs of a run: driver and ranks of every attempt.

    Examples:
        headrace logs
        headrace logs digits-20260102-030405-0a1b2c3d train --follow
        headrace logs digits-sweep-20260102-030405-0a1b2c3d:7
    """
    known = there(run_id).name
    names = [each.name for each in run_details(known).steps]
    if step is not None and step not in names:
        raise UnknownNameError(f"This run has no step '{step}'", nearest(step, names))
    printed: dict[Path, int] = {}
    _print_new(known, step, printed)
    while follow and not output_is_gone() and run_details(known).goes_on:
        time.sleep(REFRESH_S)
        _print_new(known, step, printed)


def _print_new(name: str, step: str | None, printed: dict[Path, int]) -> None:
    for row, file in log_files(RunRows.named(name)):
        if step not in (None, row.step):
            continue
        with file.open("rb") as log:
            log.seek(printed.get(file, 0))
            text = log.read().decode(errors="replace")
            printed[file] = log.tell()
        for line in text.splitlines():
            typer.echo(f"{row.step}/{row.attempt} {file.stem} | {line}")
