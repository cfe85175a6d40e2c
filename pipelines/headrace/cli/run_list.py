"""`headrace runs`: the list of runs, and all attempts at the steps of one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.filesize import decimal

from headrace.cli.arguments import NamedRun
from headrace.cli.console import JsonOption, amount, duration, moment, open_console, tell, tell_json
from headrace.cli.listing import ListColumn, Listing
from headrace.cli.words import ABANDONED, money, took_words
from headrace.ledger.ledger import open_ledger
from headrace.record import as_json_values
from headrace.runs.audit import Actor
from headrace.states import StepState
from headrace.status.run import MainMetric, RunView, Trials, run_views
from headrace.status.run_list import runs_page
from headrace.status.step import attempt_views

app = typer.Typer(name="runs", invoke_without_command=True)


@app.callback()
def runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Newest runs to list.")] = 20,
    state: Annotated[StepState | None, typer.Option(help="Only runs in this state.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, the newest first; `runs show` shows one.

    The main metric is what training monitors (`trainer.monitor`), else the first of evaluation by
    name, else the loss. A suite shows its trials and the best value; a cross-validation the mean ±
    standard deviation of its folds. Time left and cost of machines are shown if they are known.
    Requests in Airflow that were refused since the oldest of these runs follow; `headrace audit
    --refused` shows them in full.

    Examples:
        headrace runs
        headrace runs --state failed --json
    """
    if context.invoked_subcommand is not None:
        return
    states = () if state is None else (state,)
    if as_json:
        tell_json(run_views(open_ledger().runs(limit, states)))
        return
    page = runs_page(limit, states)
    open_console().print(Listing.of(page.rows, *_COLUMNS))
    for act in page.refused:
        ago, why = duration(page.now - act.at), act.refused.splitlines()[0]
        tell(f"Refused {ago} ago to {Actor(act.user or 'a user', act.through)}: {why}")


@app.command()
def show(run_id: NamedRun, as_json: JsonOption = False) -> None:
    """Show all attempts at the steps of a run: when, how long, where, and why one failed.

    Examples:
        headrace runs show digits-20260102-030405-0a1b2c3d
        headrace runs show digits-20260102-030405-0a1b2c3d --json
    """
    (row,) = run_views([open_ledger().run(run_id)])
    attempts = attempt_views(run_id, open_ledger().attempts(run_id))
    if as_json:
        tell_json({**as_json_values(row), "attempts": attempts})
        return
    console = open_console()
    console.print(f"{run_id}: {row.state.value}, {_result(row) or 'no result'}", style="bold")
    console.print(Listing.of(attempts, *_ATTEMPT_COLUMNS))


def _left(row: RunView) -> str:
    """Return the time until a run's end; if that is unknown, until the end of its step."""
    if row.eta_s is not None or row.step_eta_s is None:
        return duration(row.eta_s)
    return f"{duration(row.step_eta_s)} of {row.step}"


def _result(row: RunView) -> str:
    removed = row.removed.words if row.removed else ""
    return "; ".join(filter(None, (_outcome(row), removed)))


def _outcome(row: RunView) -> str:
    if row.is_orphan:
        return f"{ABANDONED}; headrace resume {row.run_id}"
    if why := row.why or row.damage:
        step = f"{row.failure.step}: " if row.failure else ""
        return step + why.splitlines()[0]
    if row.trials is not None and row.trials.total:
        return _trials_words(row.trials, row.metric)
    return "" if row.metric is None else f"{row.metric.name} {amount(row.metric.value)}"


def _trials_words(trials: Trials, metric: MainMetric | None) -> str:
    words = [f"{trials.ended:,} of {trials.total:,} trials"]
    words += [f"{trials.useless:,} without success"] if trials.useless else []
    if metric is not None and trials.best is not None:
        words.append(f"best {metric.value:.4g} (#{trials.best})")
    elif metric is not None:
        std = "" if metric.std is None else f" ± {metric.std:.2g}"
        words.append(f"{metric.name} {metric.value:.4g}{std}")
    return ", ".join(words)


_COLUMNS = (
    ListColumn("run", lambda row: row.run_id),
    ListColumn("site", lambda row: row.site),
    ListColumn("state", lambda row: row.state.value),
    ListColumn("time", lambda row: duration(row.elapsed_s), is_figure=True),
    ListColumn("left", _left, is_figure=True, is_optional=True),
    ListColumn("cost", lambda row: money(row.cost), is_figure=True, is_optional=True),
    ListColumn("size", lambda row: decimal(row.num_bytes) if row.num_bytes else "", is_figure=True),
    ListColumn("result", _result),
)

_ATTEMPT_COLUMNS = (
    ListColumn("step", lambda row: row.step),
    ListColumn("attempt", lambda row: str(row.attempt), is_figure=True),
    ListColumn("state", lambda row: row.state.value),
    ListColumn("asked", lambda row: moment(row.created_at), is_label=True),
    ListColumn("time", took_words, is_figure=True),
    ListColumn("lease", lambda row: row.lease_id.removeprefix(f"{row.run_id}-")),
    ListColumn("why", lambda row: ": ".join(filter(None, (row.failure_class, row.message)))),
)
