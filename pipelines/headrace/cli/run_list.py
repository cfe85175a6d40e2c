"""The commands runs and runs show: the list of runs, and the attempts of one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headrace.cli.arguments import NamedRun
from headrace.cli.console import (
    JsonOption,
    amount,
    duration,
    open_console,
    tell,
    tell_json,
)
from headrace.cli.listing import Listing
from headrace.cli.words import usd_words
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, RunRecord
from headrace.runs.audit import Actor
from headrace.states import StepState
from headrace.views.headline import Headline
from headrace.views.runs import RunRow, Trials, run_rows, runs_page

app = typer.Typer(name="runs", invoke_without_command=True)


@app.callback()
def runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Newest runs to list.")] = 20,
    state: Annotated[StepState | None, typer.Option(help="Only runs in this state.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, the newest first; `runs show` tells of one.

    The main metric is what training monitors (`trainer.monitor`), else the first of evaluation by
    name, else the loss. A suite has its trials there, and the best value; a cross-validation the
    mean ± standard deviation of its folds. What is left and what machines cost are told as far as
    they are known. Below them is what was asked for in Airflow meanwhile and refused; `headrace
    audit --refused` tells it whole.

    Examples:
        headrace runs

        headrace runs --state failed --json
    """
    if context.invoked_subcommand is not None:
        return
    states = () if state is None else (state,)
    if as_json:
        records = open_ledger().runs(limit, states)
        tell_json([_for_programs(*each) for each in zip(records, run_rows(records), strict=True)])
        return
    page = runs_page(limit, states)
    open_console().print(_listed(page.rows))
    for act in page.refused:
        ago, why = duration(page.now - act.at), act.refused.splitlines()[0]
        tell(f"Refused {ago} ago to {Actor(act.user or 'somebody', act.through)}: {why}")


@app.command()
def show(
    run_id: NamedRun,
    as_json: JsonOption = False,
) -> None:
    """Show all attempts at the steps of a run: when, how long, where, and why one failed.

    Examples:
        headrace runs show digits-20260102-030405-0a1b2c3d

        headrace runs show digits-20260102-030405-0a1b2c3d --json
    """
    record = open_ledger().run(run_id)
    (row,), attempts = run_rows([record]), open_ledger().attempts(run_id)
    if as_json:
        tell_json({**_for_programs(record, row), "attempts": [asdict(each) for each in attempts]})
        return
    console = open_console()
    result = _result(row) or "no result"
    console.print(f"{run_id}: {record.state.value}, {result}", style="bold")
    titles = ("step", "attempt", "state", "asked", "time", "lease", "why")
    listed = Listing(*titles, figures=("attempt", "time"), labels=("asked",))
    for each in attempts:
        listed.add(
            each.step,
            str(each.attempt),
            each.state.value,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.created_at)),
            duration(_took_s(each)),
            each.lease_id.removeprefix(f"{run_id}-"),
            _cause(each),
        )
    console.print(listed)


def _took_s(row: AttemptRecord) -> float | None:
    if row.started_at is None:
        return None
    return (row.finished_at or time.time()) - row.started_at


def _cause(row: AttemptRecord) -> str:
    why = f"{row.failure_class.value}: " if row.failure_class else ""
    return f"{why}{row.message}"


def _for_programs(record: RunRecord, row: RunRow) -> dict[str, Any]:
    return {**asdict(record), **json.loads(row.model_dump_json())}  # null for what is no number


def _listed(rows: Sequence[RunRow]) -> Listing:
    """Runs; what is left and what they cost only where that is known of one."""
    told = {
        "left": [_left(row) for row in rows],
        "cost": [usd_words(row.usd, row.num_unpriced) for row in rows],
    }
    more = {title: cells for title, cells in told.items() if any(cells)}
    listed = Listing("run", "site", "state", "time", *more, "result", figures=("time", *more))
    for row, *cells in zip(rows, *more.values(), strict=True):
        took = duration(row.elapsed_s)
        listed.add(row.run_id, row.site, row.state.value, took, *cells, _result(row))
    return listed


def _left(row: RunRow) -> str:
    """Time until its end; where nothing foretells that, until that of its step."""
    if row.eta_s is not None or row.step_eta_s is None:
        return duration(row.eta_s)
    return f"{duration(row.step_eta_s)} of {row.step}"


def _result(row: RunRow) -> str:
    if row.is_orphan:
        return f"its process has ended: headrace resume {row.run_id}"
    if row.why:
        step = f"{row.failure.step}: " if row.failure else ""
        return step + row.why.splitlines()[0]
    if row.trials is not None and row.trials.total:
        return _trials_words(row.trials, row.metric)
    return "" if row.metric is None else f"{row.metric.name} {amount(row.metric.value)}"


def _trials_words(trials: Trials, metric: Headline | None) -> str:
    words = [f"{trials.ended:,} of {trials.total:,} trials"]
    words += [f"{trials.useless:,} without success"] if trials.useless else []
    if metric is not None and trials.best is not None:
        words.append(f"best {metric.value:.4g} (#{trials.best})")
    elif metric is not None:
        std = "" if metric.std is None else f" ± {metric.std:.2g}"
        words.append(f"{metric.name} {metric.value:.4g}{std}")
    return ", ".join(words)
