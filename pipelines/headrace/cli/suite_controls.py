"""Commands that ask something of a suite: a line each in its `controls.jsonl`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.arguments import Suite
from headrace.ledger.records import RunRecord
from headrace.runs.suites import ask, ask_for_more, find_suite

Numbers = Annotated[list[int] | None, typer.Argument(metavar="[NUMBER]...", help="Trials.")]

_SOON = "its driver heeds it within seconds"


def pause(suite: Suite) -> None:
    """Begin no more trials; those that run go on.

    Examples:
        headrace suite pause digits-20260102-030405-0a1b2c3d
    """
    ask(find_suite(suite), "pause")
    typer.echo(f"asked to begin no more trials; {_SOON}")


def resume(
    suite: Suite,
    limit: Annotated[
        int | None, typer.Option(min=1, help="From now on so many trials at once at most.")
    ] = None,
) -> None:
    """Begin trials again after a pause; a suite whose driver has gone: headrace resume.

    Examples:
        headrace suite resume digits-20260102-030405-0a1b2c3d

        headrace suite resume digits-20260102-030405-0a1b2c3d --limit 4
    """
    record = find_suite(suite)
    if limit is not None:
        ask(record, "limit", limit=limit)
    ask(record, "resume")
    typer.echo(f"asked to begin trials; {_SOON}")


def cancel(suite: Suite, numbers: Numbers = None) -> None:
    """Cancel trials that wait or run, by number, or all: what has ended stays.

    Examples:
        headrace suite cancel digits-20260102-030405-0a1b2c3d 7 12

        headrace suite cancel digits-20260102-030405-0a1b2c3d
    """
    ask(find_suite(suite), "cancel", numbers or ())
    typer.echo(f"asked to cancel {_named(numbers)}; {_SOON}")


def retry(suite: Suite, numbers: Numbers = None) -> None:
    """Run trials that have failed or were cancelled again, by number, or all.

    Of a suite that has ended they run with `headrace resume`; those that succeeded do not again.

    Examples:
        headrace suite retry digits-20260102-030405-0a1b2c3d

        headrace suite retry digits-20260102-030405-0a1b2c3d 7
    """
    record = find_suite(suite)
    ask(record, "retry", numbers or ())
    typer.echo(f"asked to run {_named(numbers)} again; {_when(record)}")


def prioritize(
    suite: Suite,
    numbers: Annotated[list[int], typer.Argument(metavar="NUMBER...", help="Trials.")],
    priority: Annotated[int, typer.Option(help="The greatest begins first.")] = 1,
) -> None:
    """Have trials that wait begin before others; those that run go on.

    Those with the greatest priority begin first; it is 0 unless `suite.priority` of the recipe says
    otherwise.

    Examples:
        headrace suite prioritize digits-20260102-030405-0a1b2c3d 7 12

        headrace suite prioritize digits-20260102-030405-0a1b2c3d 7 --priority -1
    """
    ask(find_suite(suite), "prioritize", numbers, priority=priority)
    typer.echo(f"asked to give {_named(numbers)} priority {priority}; {_SOON}")


def add(
    suite: Suite,
    words: Annotated[list[str], typer.Argument(help="Values of the new trials, as for sweep.")],
    priority: Annotated[
        int | None, typer.Option(help="Greater ones begin first; as suite.priority says.")
    ] = None,
) -> None:
    """Add trials to a suite: every combination of the values, with its seeds and folds.

    Examples:
        headrace suite add digits-20260102-030405-0a1b2c3d trainer.max_epochs=5 seed=1,2,3

        headrace suite add digits-20260102-030405-0a1b2c3d seed=4 --priority 1
    """
    record = find_suite(suite)
    count = ask_for_more(record, words, priority)
    typer.echo(f"asked to add {count} {'trial' if count == 1 else 'trials'}; {_when(record)}")


def _when(record: RunRecord) -> str:
    is_over = record.state.is_final
    return f"it has ended, so go on with it: headrace resume {record.run_id}" if is_over else _SOON


def _named(numbers: list[int] | None) -> str:
    if not numbers:
        return "all trials that can be"
    word = "trial" if len(numbers) == 1 else "trials"
    return f"{word} {', '.join(map(str, numbers))}"


CONTROLS = (pause, resume, cancel, retry, prioritize, add)
"""The commands, in the order of their help."""
