"""State of one run, and the logs of its processes: status, attach, logs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import EXIT_INTERRUPTED
from headrace.cli.arguments import RunArgument
from headrace.cli.console import JsonOption, open_console, output_is_gone, tell, tell_json
from headrace.cli.view import exit_as, print_failures
from headrace.cli.watching import REFRESH_S, end_of, look
from headrace.cli.watching import watch as watch_run
from headrace.errors import UnknownNameError, nearest
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import RunFilter
from headrace.recipe.unix_accounts import account
from headrace.runs.names import named, there
from headrace.runs.owners import owner_is_gone
from headrace.runs.parts import PART, check_whole
from headrace.states import StepState
from headrace.status.logs import log_files
from headrace.status.run import RunRows
from headrace.status.run_details import RunDetails, run_details

_MOST = 1000


def status(
    run_id: RunArgument = None,
    watch: Annotated[bool, typer.Option(help="Until the run ends, as `attach` does.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run's state: steps, progress, rate, time left.

    A suite shows its trials by state. Without a run's id, your abandoned runs are listed, too.

    Examples:
        headrace status
        headrace status digits-20260102-030405-0a1b2c3d --watch
        headrace status digits-sweep-20260102-030405-0a1b2c3d:7
        headrace status --json
    """
    known = named(run_id).name
    if as_json:
        tell_json(run_details(known))
        return
    if watch:
        attach(known)
        return
    _show(run_details(known))
    if run_id is None and (left := abandoned_runs()):
        tell(f"Abandoned: {', '.join(left)}. Continue all of them: headrace resume --abandoned")


def attach(run_id: RunArgument = None) -> None:
    """Show a run live; Ctrl-C ends only this view.

    Any run can be shown: of this or another terminal, detached, or of Airflow; also by several
    terminals at once. The exit code is that of `headrace run`, and 130 after Ctrl-C. If the output
    is not a terminal, each change of a step is a line.

    Examples:
        headrace attach
        headrace attach digits-20260102-030405-0a1b2c3d
    """
    found = named(run_id)
    check_whole(found.record, "attach")
    known = found.name
    try:
        if run_details(known).goes_on:
            tell("Ctrl-C ends only this view: the run continues.")
        watch_run(known, open_console())
    except KeyboardInterrupt:
        tell(f"The run continues. Watch it again: headrace attach {known}")
        tell(f"Stop it: headrace cancel {known}")
        os._exit(EXIT_INTERRUPTED)  # a thread of the view may hold the lock of standard output
    view = run_details(known)
    _show(view)
    exit_as(view)


def _show(view: RunDetails) -> None:
    console = open_console()
    console.print(end_of(view) if view.state.is_final else look(view))
    print_failures(view, console)


def abandoned_runs() -> list[str]:
    """Return the ids of this user's runs whose process on this machine has ended early."""
    states = tuple(state for state in StepState if not state.is_final)
    wanted = RunFilter(limit=_MOST, state=states, kind=("all",), user=(account(),))
    rows = (row for row in open_ledger().find_runs(wanted) if row.kind != PART)
    return [row.run_id for row in rows if owner_is_gone(row.owner)]


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
