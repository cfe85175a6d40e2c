"""The command results: the results of a suite's trials together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.arguments import AnySuite
from headrace.cli.console import JsonOption, as_csv_text, as_json_text, open_console, plain_table
from headrace.cli.suite_view import folds_table, points_table, trials_list
from headrace.errors import UserError
from headrace.files.atomic import write_text
from headrace.files.layout import RunFolder
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import Objective
from headrace.runs.results import (
    comparable,
    environments_of,
    judged_by,
    table_of,
    trials_of,
    write_parquet,
    write_report,
)
from headrace.runs.scaling import Scaling, scaling_of
from headrace.runs.suites import sought_by
from headrace.status.suite import find_suite
from headrace.suites.analysis import (
    INTERVAL,
    Marginal,
    Results,
    are_folds,
    importance_of,
    interval_words,
    range_words,
    results_of,
    spread_words,
)
from headrace.suites.names import short_keys

_SHOWN = 10
_OF_TRIALS = ("number", "site", "environment", "weights")


def results(  # noqa: PLR0913  options of a command
    suite: AnySuite = None,
    csv: Annotated[bool, typer.Option("--csv", help="A row for each trial, as CSV.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="The same as Parquet.")] = False,
    report: Annotated[bool, typer.Option("--report", help="One HTML file of all.")] = False,
    by: Annotated[
        list[str] | None,
        typer.Option(help="METRIC:min or METRIC:max instead of the suite's objective; repeatable."),
    ] = None,
    only_comparable: Annotated[
        bool,
        typer.Option("--comparable", help="Only trials of the most frequent hardware, software."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write.", dir_okay=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the results of a suite: best, means, importance.

    For several objectives it shows the front: the trials that no other trial beats in all of them.
    Folds and seeds of a point are one result, with its mean. The importance of each key is computed
    by Optuna's fANOVA, of more than 500 trials by its PED-ANOVA, once ten trials have ended. A
    running suite shows the results so far. Where trials differ in nodes or ranks, their samples/s
    are compared with those of the fewest.

    Examples:
        headrace results
        headrace results digits-20260102-030405-0a1b2c3d --csv -o trials.csv
        headrace results digits-20260102-030405-0a1b2c3d --report --by accuracy:max
    """
    if csv + parquet + report + as_json > 1:
        raise UserError(
            "Several formats are given", "Give one of --csv, --parquet, --json, --report."
        )
    if parquet and output is None:
        raise UserError("Parquet is not a text format", "Name a file: -o trials.parquet.")
    sought = tuple(_objective(each) for each in by or ())
    choose = comparable if only_comparable else tuple
    with open_console(stderr=True).status("Reading the trials …") as status:
        record, shown, text = find_suite(suite), [], ""
        if report:
            text, output = f"{write_report(record, output, sought, choose)}\n", None
        else:
            every = trials_of(record)
            rows = judged_by(choose(every), sought) if sought else choose(every)
            folder = RunFolder(Path(record.folder))
            objectives = sought or sought_by(folder).objectives
            status.update(f"Comparing {len(rows):,} trials …")
            if parquet and output is not None:
                write_parquet(table_of(rows, objectives), output)
            elif csv:
                text = as_csv_text(table_of(rows, objectives), "number")
            elif as_json:
                text = _for_programs(rows, results_of(rows, objectives), scaling_of(folder, rows))
            else:
                shown = [*_for_people(rows, results_of(rows, objectives)), *_environments(every)]
                shown += _scaling(scaling_of(folder, rows))
    _show(text, output, shown)


def _show(text: str, output: Path | None, parts: Iterable[RenderableType]) -> None:
    if output is not None and text:
        write_text(output, text)
    elif text:
        typer.echo(text, nl=not text.endswith("\n"))
    for part in parts:
        open_console().print(part)


def _objective(word: str) -> Objective:
    metric, _, mode = word.rpartition(":")
    if mode not in ("min", "max") or not metric:
        raise UserError(f"'{word}' is not METRIC:min or METRIC:max", "Example: accuracy:max.")
    return Objective(metric=metric, mode="min" if mode == "min" else "max")


def _for_programs(rows: Sequence[TrialRecord], found: Results, scaling: Sequence[Scaling]) -> str:
    matters = importance_of(rows, found.objectives)
    importance = {"importance": matters.shares, "no_importance": matters.why_not}
    trials = [{name: getattr(row, name) for name in _OF_TRIALS} for row in rows]
    differ = {"environments": environments_of(rows), "trials": trials}
    return as_json_text({**dict(found), **importance, "scaling": scaling, **differ})


def _environments(rows: Sequence[TrialRecord]) -> Iterator[Table | str]:
    """Show what hardware and software differ between trials, if any do."""
    groups = environments_of(rows)
    if len(groups) > 1:
        yield "\nTrials differ in hardware or software; --comparable shows only the first row's:"
        table = plain_table("what differs", figures=("trials", "first"))
        for each in groups:
            table.add_row(each.differs or "unknown", str(len(each.numbers)), str(each.numbers[0]))
        yield table


def _scaling(found: Sequence[Scaling]) -> Iterator[Table | str]:
    if found:
        figures = (*found[0].size, "samples/s", "speed-up", "efficiency")
        table = plain_table(figures=figures)
        for each in found:
            sizes = map(str, each.size.values())
            rate, speedup = f"{each.samples_per_s:,.0f}", f"{each.speedup:.2f}"
            table.add_row(*sizes, rate, speedup, f"{each.efficiency:.0%}")
        yield "\nTraining on more nodes or ranks, against the fewest:"
        yield table


def _for_people(rows: Sequence[TrialRecord], found: Results) -> Iterator[RenderableType]:
    numbers = found.front or ([] if found.best is None else [found.best])
    chosen = [row for row in rows if row.number in numbers]
    title = "Trials that no other one beats in all objectives:" if found.front else "Best trial:"
    if not found.objectives:
        names = ", ".join(sorted({name for row in rows for name in row.metrics}))
        yield (
            f"The suite has no objective: name one, as in --by NAME:max, of {names}."
            if names
            else "The suite has no objective, and its trials have no metrics."
        )
    elif are_folds(rows) and found.points[0].spread is not None:
        yield "Folds of the best point:" if len(found.points) > 1 else "Folds:"
        yield folds_table(found.points[0], found.objectives)
    elif not chosen:
        yield "No trial has ended with a value yet."
    else:
        yield title
        yield trials_list(chosen, found.objectives)
    if any(len(point.numbers) > 1 for point in found.points):
        yield f"\nPoints, folds and seeds together, the best {_SHOWN}:"
        yield points_table(found.points[:_SHOWN], found.objectives)
    yield from _of_keys(rows, found)


def _of_keys(rows: Sequence[TrialRecord], found: Results) -> Iterator[Table | str]:
    if not found.marginals:
        return
    matters = importance_of(rows, found.objectives)
    table = plain_table("key and value", figures=("trials", "mean", INTERVAL))
    names = short_keys(found.marginals)
    for key, marginals in found.marginals.items():
        share = f", importance {matters.shares[key]:.0%}" if key in matters.shares else ""
        table.add_row(Text(f"{names[key]}{share}"))
        for each in marginals[:_SHOWN]:
            count, value = str(each.spread.count), Text(f"  {_value(each)}")
            table.add_row(value, count, spread_words(each.spread), interval_words(each.spread))
        if len(marginals) > _SHOWN:
            table.add_row(f"  and {len(marginals) - _SHOWN} more")
    yield "\nBy the value of each key, over all other differences:"
    yield table
    if matters.why_not:
        yield f"The importance of keys is not computed: {matters.why_not}"


def _value(marginal: Marginal) -> str:
    if marginal.between is not None:
        return range_words(marginal)
    return f"{marginal.value:.6g}" if isinstance(marginal.value, float) else str(marginal.value)
