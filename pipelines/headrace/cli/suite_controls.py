"""Commands that ask something of a suite: a line each in its `controls.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli.arguments import OneSuite, suites
from headrace.errors import UserError
from headrace.ledger.rows import RunRecord
from headrace.runs.suites import ask, ask_for_more, find_suite, only_suite

Numbered = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUITE|NUMBER",
        help="Id of the suite, when there are several; numbers of trials.",
        autocompletion=suites,
    ),
]

_SOON = "its driver heeds it within seconds"


def pause(suite: OneSuite = None) -> None:
    """Begin no more trials; those that run go on.

    Examples:
        headrace suite pause digits-20260102-030405-0a1b2c3d
    """
    record = _suite(suite)
    ask(record, "pause")
    typer.echo(f"{record.run_id}: asked to begin no more trials; {_SOON}")


def resume(
    suite: OneSuite = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="From now on so many trials at once at most.")
    ] = None,
) -> None:
    """Begin trials again after a pause; a suite whose driver has gone: headrace resume.

    Examples:
        headrace suite resume digits-20260102-030405-0a1b2c3d

        headrace suite resume digits-20260102-030405-0a1b2c3d --limit 4
    """
    record = _suite(suite)
    if limit is not None:
        ask(record, "limit", details=f"to {limit}", limit=limit)
    ask(record, "resume")
    typer.echo(f"{record.run_id}: asked to begin trials; {_SOON}")


def cancel(words: Numbered = None) -> None:
    """Cancel trials that wait or run, by number, or all: what has ended stays.

    Examples:
        headrace suite cancel digits-20260102-030405-0a1b2c3d 7 12

        headrace suite cancel 7
    """
    record, numbers = suite_and_numbers(words)
    ask(record, "cancel", numbers)
    typer.echo(f"{record.run_id}: asked to cancel {_named(numbers)}; {_SOON}")


def retry(words: Numbered = None) -> None:
    """Run trials that have failed or were cancelled again, by number, or all.

    Of a suite that has ended they run with `headrace resume`; those that succeeded do not again.

    Examples:
        headrace suite retry

        headrace suite retry digits-20260102-030405-0a1b2c3d 7
    """
    record, numbers = suite_and_numbers(words)
    ask(record, "retry", numbers)
    typer.echo(f"{record.run_id}: asked to run {_named(numbers)} again; {_when(record)}")


def prioritize(
    words: Numbered,
    priority: Annotated[int, typer.Option(help="The greatest begins first.")] = 1,
) -> None:
    """Have trials that wait begin before others; those that run go on.

    Those with the greatest priority begin first; it is 0 unless `suite.priority` of the recipe says
    otherwise.

    Examples:
        headrace suite prioritize digits-20260102-030405-0a1b2c3d 7 12

        headrace suite prioritize digits-20260102-030405-0a1b2c3d 7 --priority -1
    """
    record, numbers = suite_and_numbers(words)
    if not numbers:
        raise UserError("No trial is named", "Say which: headrace suite prioritize 7 12.")
    told = f"{_named(numbers)}: priority {priority}"
    ask(record, "prioritize", numbers, details=told, priority=priority)
    typer.echo(f"{record.run_id}: asked to give {_named(numbers)} priority {priority}; {_SOON}")


def add(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SUITE|KEY=VALUES",
            help="Id of the suite, when there are several; values of new trials, as for sweep.",
            autocompletion=suites,
        ),
    ],
    priority: Annotated[
        int | None, typer.Option(help="Greater ones begin first; as suite.priority says.")
    ] = None,
) -> None:
    """Add trials to a suite: every combination of the values, with its seeds and folds.

    Examples:
        headrace suite add digits-20260102-030405-0a1b2c3d trainer.max_epochs=5 seed=1,2,3

        headrace suite add seed=4 --priority 1
    """
    is_named = "=" not in words[0]
    record = _suite(words[0] if is_named else None)
    count = ask_for_more(record, words[1:] if is_named else words, priority)
    more = f"{count} {'trial' if count == 1 else 'trials'}"
    typer.echo(f"{record.run_id}: asked to add {more}; {_when(record)}")


def suite_and_numbers(words: Sequence[str] | None) -> tuple[RunRecord, list[int]]:
    """A suite, the only one when the first word is a number or missing, and numbers of trials.

    Raises:
        UserError: A word is no number; several suites may be meant.
    """
    given = list(words or ())
    named = given.pop(0) if given and not given[0].isdecimal() else None
    if wrong := [word for word in given if not word.isdecimal()]:
        raise UserError(f"'{wrong[0]}' is no number of a trial", "List them: headrace suite show.")
    return _suite(named), [int(word) for word in given]


def _suite(run_id: str | None) -> RunRecord:
    return only_suite() if run_id is None else find_suite(run_id)


def _when(record: RunRecord) -> str:
    is_over = record.state.is_final
    return f"it has ended, so go on with it: headrace resume {record.run_id}" if is_over else _SOON


def _named(numbers: Sequence[int]) -> str:
    if not numbers:
        return "all trials that can be"
    word = "trial" if len(numbers) == 1 else "trials"
    return f"{word} {', '.join(map(str, numbers))}"


CONTROLS = (pause, resume, cancel, retry, prioritize, add)
"""The commands, in the order of their help."""
