"""Commands about suites: list, show, watch, and what is asked of one while it runs."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from headrace.cli.arguments import AnySuite
from headrace.cli.console import JsonOption, open_console, output_is_gone, tell_json
from headrace.cli.suite_controls import CONTROLS, Numbered, suite_and_numbers
from headrace.cli.suite_view import (
    closing,
    live,
    points_table,
    suites_list,
    trials_list,
)
from headrace.cli.watching import REFRESH_S, Counts
from headrace.errors import UnknownNameError, UserError, nearest
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.trial_rows import TRIAL_ORDERS, TrialRecord
from headrace.runs.suites import (
    SuiteView,
    find_suite,
    objectives_of,
    suite_view,
    suites,
)
from headrace.states import StepState
from headrace.suites.analysis import points
from headrace.suites.records import PRUNED

app = typer.Typer(name="suite", help="Suites: see their trials; pause, cancel, add some.")

TrialState = Enum(  # type: ignore[misc]
    "TrialState", {name: name for name in (*(state.value for state in StepState), PRUNED)}
)
"""States that trials can be chosen by."""

_MOST = 1_000_000


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, help="Newest suites to list.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List suites, the newest first: trials by state, the best value, time left, cost.

    Examples:
        headrace suite list

        headrace suite list --limit 3 --json
    """
    views = [suite_view(record) for record in suites(limit)]
    if as_json:
        tell_json(views)
        return
    open_console().print(suites_list(views))


@app.command()
def show(
    suite: AnySuite = None,
    state: Annotated[TrialState | None, typer.Option(help="Only trials in this state.")] = None,
    sort: Annotated[
        str, typer.Option(help=f"By {', '.join(TRIAL_ORDERS)}; -objective: the greatest first.")
    ] = "number",
    limit: Annotated[int, typer.Option(min=1, help="Most trials.")] = 100,
    by_point: Annotated[
        bool, typer.Option("--points", help="Folds and seeds of a point together: mean ± std.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the trials of a suite: what is different, objective, time, node, why one failed.

    With **--points**, trials that differ only by fold and seed are one row, with mean, standard
    deviation and the 95 % confidence interval of the mean.

    Examples:
        headrace suite show

        headrace suite show digits-20260102-030405-0a1b2c3d --state failed

        headrace suite show digits-20260102-030405-0a1b2c3d --sort objective --limit 5 --json
    """
    record = find_suite(suite)
    _check_sort(sort)
    objectives = objectives_of(RunFolder(Path(record.folder)))
    console = open_console()
    if by_point:
        found = points(_rows(record.run_id, state, "number", _MOST), objectives)[:limit]
        if as_json:
            tell_json(found)
        else:
            console.print(points_table(found, objectives))
        return
    rows = _rows(record.run_id, state, sort, limit)
    if as_json:
        tell_json([_for_programs(row) for row in rows])
        return
    console.print(trials_list(rows, objectives))
    total = sum(open_ledger().count_trials(record.run_id).values())
    if len(rows) == limit < total:
        console.print(f"{limit} of {total} trials; --limit shows more")


@app.command()
def watch(suite: AnySuite = None) -> None:
    """Watch a suite until it ends: trials by state, those that run, the best, time left.

    Examples:
        headrace suite watch

        headrace suite watch digits-20260102-030405-0a1b2c3d
    """
    run_id = find_suite(suite).run_id
    console = open_console()
    screen = Live(console=console, auto_refresh=False, transient=True)
    with screen if console.is_terminal else nullcontext():
        counts = Counts(console)
        while _goes_on(view := suite_view(open_ledger().run(run_id))):
            if console.is_terminal:
                screen.update(live(view), refresh=True)
            else:
                counts.tell(view)
            time.sleep(REFRESH_S)
    console.print(closing(view))


@app.command()
def logs(words: Numbered) -> None:
    """Print the logs of a trial's attempts.

    Examples:
        headrace suite logs digits-20260102-030405-0a1b2c3d 7

        headrace suite logs 7
    """
    record, numbers = suite_and_numbers(words)
    if len(numbers) != 1:
        raise UserError("Name one trial", "By its number: headrace suite logs 7.")
    row = open_ledger().trial(record.run_id, *numbers)
    folder = RunFolder(Path(record.folder)).trial(*numbers)
    for attempt in range(1, row.attempts + 1):
        for file in sorted(folder.attempt(attempt).logs.glob("*.log")):
            for line in file.read_text(errors="replace").splitlines():
                typer.echo(f"{attempt} {file.stem} | {line}")


def _goes_on(view: SuiteView) -> bool:
    return not view.state.is_final and not view.owner_is_gone and not output_is_gone()


def _rows(run_id: str, state: TrialState | None, sort: str, limit: int) -> tuple[TrialRecord, ...]:
    """Trials in a state; those that were pruned are a state of their own."""
    if state is None:
        return open_ledger().trials(run_id, order=sort, limit=limit)
    pruned = state.value == PRUNED
    in_ledger = StepState.SUCCEEDED if pruned else StepState(state.value)
    rows = open_ledger().trials(run_id, state=in_ledger, order=sort, limit=_MOST)
    return tuple(row for row in rows if row.pruned is pruned)[:limit]


def _check_sort(sort: str) -> None:
    name = sort.removeprefix("-")
    if name not in TRIAL_ORDERS:
        raise UnknownNameError(f"Trials have no order '{sort}'", nearest(name, TRIAL_ORDERS))


def _for_programs(row: TrialRecord) -> dict[str, Any]:
    return {**asdict(row), "state": PRUNED if row.pruned else row.state.value}


for _control in CONTROLS:
    app.command()(_control)
