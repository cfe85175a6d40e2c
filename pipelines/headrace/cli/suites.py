"""Commands about suites: show, and requests to a running suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import arguments
from headrace.cli.arguments import AnySuite, OneSuite
from headrace.cli.console import JsonOption, open_console, tell_json
from headrace.cli.suite_view import points_table, sites_table, trials_list
from headrace.errors import UserError
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.trial_rows import TRIAL_ORDERS, TrialRecord
from headrace.runs.suites import ask, ask_for_more, sought_by
from headrace.states import StepState
from headrace.status.run import summary_of
from headrace.status.suite import find_suite, state_of
from headrace.suites.analysis import points
from headrace.suites.records import PRUNED

Numbered = Annotated[
    list[str] | None,
    arguments.a_suite("Id of the suite, if there are several; numbers of trials.", "SUITE|NUMBER"),
]

app = typer.Typer(name="suite", help="Suites: list trials; pause, cancel, add some.")

TrialState = Enum(  # type: ignore[misc]
    "TrialState", {name: name for name in (*(state.value for state in StepState), PRUNED)}
)
"""States for `--state`."""

_MOST = 1_000_000
_MOST_NAMED = 10


@app.command()
def show(
    suite: AnySuite = None,
    state: Annotated[TrialState | None, typer.Option(help="Only trials in this state.")] = None,
    sort: Annotated[
        str, typer.Option(help=f"By {', '.join(TRIAL_ORDERS)}; -objective: the greatest first.")
    ] = "number",
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most this many trials.")
    ] = 100,
    by_point: Annotated[
        bool, typer.Option("--points", help="Folds and seeds of a point together: mean ± std.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the trials of a suite: different values, objective, time, node, why one failed.

    A suite over several sites also shows these: state, price, trials, cost, time left.
    With **--points**, trials that differ only by fold and seed are one row, with mean, standard
    deviation and the 95 % confidence interval of the mean.

    Examples:
        headrace suite show
        headrace suite show digits-20260102-030405-0a1b2c3d --state failed
        headrace suite show digits-20260102-030405-0a1b2c3d --sort objective --limit 5 --json
    """
    record = find_suite(suite)
    objectives = sought_by(RunFolder(Path(record.folder))).objectives
    console = open_console()
    if by_point:
        found = points(_rows(record.run_id, state, "number", _MOST), objectives, limit)
        if as_json:
            tell_json(found)
        else:
            console.print(points_table(found, objectives))
        return
    rows = _rows(record.run_id, state, sort, limit)
    if as_json:
        tell_json([{**asdict(row), "state": state_of(row)} for row in rows])
        return
    if (summary := summary_of(record)[0]) and summary.sites:
        console.print(sites_table(summary.sites), "")
    console.print(trials_list(rows, objectives))
    counts = open_ledger().trials_counted([record.run_id]).get(record.run_id, {})
    total = sum(counts.values())
    if len(rows) == limit < total:
        console.print(f"{limit} of {total} trials; --limit shows more")


@app.command()
def pause(suite: OneSuite = None) -> None:
    """Start no more trials; running ones continue.

    Examples:
        headrace suite pause digits-20260102-030405-0a1b2c3d
    """
    _ask(find_suite(suite, _MOST_NAMED), "pause", "start no more trials")


@app.command()
def resume(
    suite: OneSuite = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most trials at once from now on.")
    ] = None,
) -> None:
    """Start trials again after a pause; if the suite's process has ended: headrace resume.

    Examples:
        headrace suite resume digits-20260102-030405-0a1b2c3d
        headrace suite resume digits-20260102-030405-0a1b2c3d --limit 4
    """
    record = find_suite(suite, _MOST_NAMED)
    if limit is not None:
        ask(record, "limit", details=f"to {limit}", limit=limit)
    _ask(record, "resume", "start trials")


@app.command()
def cancel(words: Numbered = None) -> None:
    """Cancel trials that wait or run, by number, or all; ended ones stay.

    Examples:
        headrace suite cancel digits-20260102-030405-0a1b2c3d 7 12
        headrace suite cancel 7
    """
    record, numbers = _suite_and_numbers(words)
    _ask(record, "cancel", f"cancel {_named(numbers)}", numbers)


@app.command()
def retry(words: Numbered = None) -> None:
    """Run trials that have failed or were cancelled again, by number, or all.

    If the suite has ended, they run with `headrace resume`. Successful trials are not run again.

    Examples:
        headrace suite retry
        headrace suite retry digits-20260102-030405-0a1b2c3d 7
    """
    record, numbers = _suite_and_numbers(words)
    _ask(record, "retry", f"run {_named(numbers)} again", numbers)


@app.command()
def prioritize(
    words: Numbered,
    priority: Annotated[int, typer.Option(help="Trials with a greater one start first.")] = 1,
) -> None:
    """Start waiting trials before others; running ones continue.

    The trials with the greatest priority start first. The default is 0, or `suite.priority` of the
    recipe.

    Examples:
        headrace suite prioritize digits-20260102-030405-0a1b2c3d 7 12
        headrace suite prioritize digits-20260102-030405-0a1b2c3d 7 --priority -1
    """
    record, numbers = _suite_and_numbers(words)
    if not numbers:
        raise UserError("A trial's number is missing", "Example: headrace suite prioritize 7 12.")
    named = _named(numbers)
    more = {"details": f"{named}: priority {priority}", "priority": priority}
    _ask(record, "prioritize", f"give {named} priority {priority}", numbers, **more)


@app.command()
def add(
    words: Annotated[
        list[str],
        arguments.a_suite(
            "Id of the suite, if there are several; values of new trials, as for sweep.",
            "SUITE|KEY=VALUES",
        ),
    ],
    priority: Annotated[
        int | None, typer.Option(help="Greater ones start first; default: suite.priority.")
    ] = None,
) -> None:
    """Add trials to a suite: every combination of the values, with its seeds and folds.

    Examples:
        headrace suite add digits-20260102-030405-0a1b2c3d trainer.max_epochs=5 seed=1,2,3
        headrace suite add seed=4 --priority 1
    """
    is_named = "=" not in words[0]
    record = find_suite(words[0] if is_named else None, _MOST_NAMED)
    count = ask_for_more(record, words[1:] if is_named else words, priority)
    _tell(record, f"add {count} {'trial' if count == 1 else 'trials'}")


@app.command()
def site(
    words: Annotated[
        list[str],
        arguments.a_suite("Id of the suite, if there are several; name of the site.", "SUITE|SITE"),
    ],
    pause: Annotated[
        bool | None, typer.Option("--pause/--resume", help="Start no more trials there, or again.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Most trials at once there; 0: no limit.")
    ] = None,
    leave: Annotated[
        bool, typer.Option("--leave", help="Pause it; move its trials to the other sites.")
    ] = False,
) -> None:
    """Pause, limit or leave one of several sites of a suite.

    A trial that moves to another site continues from its last checkpoint.

    Examples:
        headrace suite site digits-20260102-030405-0a1b2c3d box --pause
        headrace suite site box --resume
        headrace suite site aws --limit 4
        headrace suite site aws --leave
    """
    given = (pause is not None) + (limit is not None) + leave
    if len(words) > 2 or given != 1:
        what = f"{len(words)} names" if len(words) > 2 else f"{given} options"
        hint = "Give one site and one of --pause, --resume, --limit N, --leave."
        raise UserError(f"A command for a site was given {what}", hint)
    record, name = find_suite(words[0] if len(words) > 1 else None, _MOST_NAMED), words[-1]
    if limit is not None:
        most = f"{limit} {'trial' if limit == 1 else 'trials'}"
        asked = f"run at most {most} at once on {name}" if limit else f"not limit {name}"
        _ask(record, "limit-site", asked, site=name, limit=limit or None)
    elif leave:
        _ask(record, "leave-site", f"move its trials off {name}", site=name)
    else:
        asked = f"start {'no more ' if pause else ''}trials on {name}"
        _ask(record, "pause-site" if pause else "resume-site", asked, site=name)


def _rows(run_id: str, state: TrialState | None, sort: str, limit: int) -> tuple[TrialRecord, ...]:
    """Return trials in a state; `pruned` is a state here."""
    if state is None:
        return open_ledger().trials(run_id, order=sort, limit=limit)
    pruned = state.value == PRUNED
    in_ledger = StepState.SUCCEEDED if pruned else StepState(state.value)
    rows = open_ledger().trials(run_id, state=in_ledger, order=sort, limit=_MOST)
    return tuple(row for row in rows if row.pruned is pruned)[:limit]


def _suite_and_numbers(words: Sequence[str] | None) -> tuple[RunRecord, list[int]]:
    """Return a suite and numbers of trials; the only suite if the first word is a number or none.

    Raises:
        UserError: A word is not a number; there are several suites.
    """
    given = list(words or ())
    named = given.pop(0) if given and not given[0].isdecimal() else None
    if wrong := [word for word in given if not word.isdecimal()]:
        raise UserError(f"'{wrong[0]}' is not a trial's number", "List them: headrace suite show.")
    return find_suite(named, _MOST_NAMED), [int(word) for word in given]


def _ask(
    record: RunRecord, what: str, in_words: str, numbers: Sequence[int] = (), **more: Any
) -> None:
    """Send a command to a suite, and print it."""
    ask(record, what, numbers, **more)
    _tell(record, in_words)


def _tell(record: RunRecord, asked: str) -> None:
    """Print what a suite was asked to do, and when it will."""
    when = "it takes effect within seconds"
    if record.state.is_final:
        when = f"it has ended, so resume it: headrace resume {record.run_id}"
    typer.echo(f"{record.run_id}: asked to {asked}; {when}")


def _named(numbers: Sequence[int]) -> str:
    if not numbers:
        return "all possible trials"
    word = "trial" if len(numbers) == 1 else "trials"
    return f"{word} {', '.join(map(str, numbers))}"
