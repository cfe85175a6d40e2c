"""`headrace runs` and `mark`: the list of runs, all attempts of one, tags, notes and stars."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.filesize import decimal

from headrace.cli import arguments
from headrace.cli.arguments import NamedRun
from headrace.cli.console import JsonOption, amount, duration, moment, open_console, tell, tell_json
from headrace.cli.listing import ListColumn, Listing
from headrace.cli.words import ABANDONED, money, took_words
from headrace.errors import UserError, shortened
from headrace.ledger.run_filter import Marks, RunFilter
from headrace.recipe.load import parse
from headrace.record import as_json_values
from headrace.runs.audit import Actor
from headrace.states import StepState
from headrace.status.run import MainMetric, RunRows, RunView, Trials, view_of
from headrace.status.run_list import found_runs, mark_runs, runs_page
from headrace.status.step import attempt_views

_MOST_WORDS, _MOST_LETTERS = 3, 40  # of the differences and of a note: a row stays a line
Several = list[str] | None

app = typer.Typer(name="runs", invoke_without_command=True)


@app.callback()
def runs(  # noqa: PLR0913  options of a command
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Most runs to list.")] = 20,
    state: Annotated[list[StepState] | None, typer.Option(help="Only in this state.")] = None,
    kind: Annotated[Several, typer.Option(help="Only of this kind, as `pack`; or `all`.")] = None,
    user: Annotated[Several, typer.Option(help="Only of this user.")] = None,
    recipe: Annotated[
        Several, typer.Option(help="Only of this recipe.", autocompletion=arguments.recipes)
    ] = None,
    tag: Annotated[Several, typer.Option(help="Only with this tag.")] = None,
    starred: Annotated[bool, typer.Option("--starred", help="Only with a star.")] = False,
    where: Annotated[Several, typer.Option(help="Only with lr=0.1, 'accuracy>0.9', ….")] = None,
    since: Annotated[str, typer.Option(help="First day: 2026-11-01, 2026-11, or 7d.")] = "",
    until: Annotated[str, typer.Option(help="Last day, the same way.")] = "",
    text: Annotated[str, typer.Option(help="Part of id, recipe, overrides, note, ….")] = "",
    sort: Annotated[str, typer.Option(help="Metric, best first; NAME:min, NAME:max.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List runs, the newest first; `runs show` shows one.

    All filters hold together; of an option that is given several times one value is enough, but of
    `--tag` and `--where` all. Days are those of UTC. `--where` takes overrides, `seed`, `dataset`
    and metrics; a key is dotted (`model.lr`) or its last part (`lr`). Packings are not listed.

    The main metric is what training monitors (`trainer.monitor`), else the first of evaluation by
    name, else the loss; with `--sort` it is its metric, and runs without it come last. A suite has
    its trials and the best value; a cross-validation the mean ± standard deviation of its folds.
    Time left and cost of machines are shown if they are known. Requests in Airflow that were
    refused since the oldest of these runs follow; `headrace audit --refused` shows them in full.
    `--json` has all overrides and metrics, of a suite those of its best trial.

    Examples:
        headrace runs
        headrace runs --since 7d --recipe digits --where lr=0.1 --sort accuracy
        headrace runs --tag paper --where 'accuracy>0.9' --json
        headrace runs --state failed --user ada --kind all
    """
    if context.invoked_subcommand is not None:
        return
    given = {name: value for name, value in context.params.items() if value and name != "as_json"}
    wanted = parse(RunFilter, given, "The filter of the list")
    if as_json:
        tell_json(found_runs(wanted))
        return
    page = runs_page(wanted)
    open_console().print(Listing.of(page.rows, *_COLUMNS))
    for act in page.refused:
        ago, why = duration(page.now - act.at), act.refused.splitlines()[0]
        tell(f"Refused {ago} ago to {Actor(act.user or 'a user', act.through)}: {why}")


def mark(
    run_ids: Annotated[list[str], arguments.a_run("Ids of runs.", "RUN...")],
    tag: Annotated[Several, typer.Option(help="Tag to add.")] = None,
    untag: Annotated[Several, typer.Option(help="Tag to remove.")] = None,
    note: Annotated[str | None, typer.Option(help="New note; '' removes it.")] = None,
    star: Annotated[bool | None, typer.Option("--star/--no-star", help="Star it, or not.")] = None,
) -> None:
    """Tag, note or star runs.

    A tag has 1 to 40 letters, digits, `.`, `-` or `_`. `headrace runs` finds runs by `--tag`,
    `--starred` and the text of notes; `headrace audit` lists who set what.

    Examples:
        headrace mark digits-20260102-030405-0a1b2c3d --tag paper --star
        headrace mark RUN RUN --untag paper --note "wrong labels in val"
    """
    given = {"tag": tag or (), "untag": untag or (), "note": note, "star": star}
    marks = parse(Marks, given, "The marks")
    if marks == Marks():
        raise UserError("There is nothing to change", "Give --tag, --untag, --note or --star.")
    mark_runs(run_ids, marks, Actor.here())


@app.command()
def show(run_id: NamedRun, as_json: JsonOption = False) -> None:
    """Show all attempts at the steps of a run: when, how long, where, and why one failed.

    Examples:
        headrace runs show digits-20260102-030405-0a1b2c3d
        headrace runs show digits-sweep-20260102-030405-0a1b2c3d:7 --json
    """
    rows = RunRows.named(run_id)
    row, attempts = view_of(rows, time.time()), attempt_views(rows.run.run_id, rows.attempts)
    if as_json:
        tell_json({**as_json_values(row), "attempts": attempts})
        return
    console = open_console()
    console.print(f"{row.run_id}: {row.state.value}, {_result(row) or 'no result'}", style="bold")
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
        return f"{ABANDONED}; headrace resume {row.run_id.partition(':')[0]}"
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


def _what(row: RunView) -> str:
    """Return what differs from other runs: overrides, dataset, seed."""
    unknown = {"dataset=", f"dataset={row.recipe}", "seed=None"}
    words = dict.fromkeys((*row.overrides, f"dataset={row.dataset}", f"seed={row.seed}"))
    known = [word for word in words if word not in unknown]
    more = [f"and {len(known) - _MOST_WORDS} more"] if len(known) > _MOST_WORDS else []
    return " ".join((*known[:_MOST_WORDS], *more))


def _marks(row: RunView) -> str:
    note = shortened(row.note.partition("\n")[0], _MOST_LETTERS)
    return ", ".join(filter(None, ("*" if row.is_starred else "", *row.tags, note)))


_COLUMNS = (
    ListColumn("run", lambda row: row.run_id),
    ListColumn("kind", lambda row: "" if row.kind == "train" else row.kind, is_optional=True),
    ListColumn("site", lambda row: row.site),
    ListColumn("user", lambda row: row.user),
    ListColumn("state", lambda row: row.state.value),
    ListColumn("when", lambda row: moment(row.created_at)[:16]),
    ListColumn("time", lambda row: duration(row.elapsed_s), is_figure=True),
    ListColumn("left", _left, is_figure=True, is_optional=True),
    ListColumn("cost", lambda row: money(row.cost), is_figure=True, is_optional=True),
    ListColumn("size", lambda row: decimal(row.num_bytes) if row.num_bytes else "", is_figure=True),
    ListColumn("what", _what, is_optional=True),
    ListColumn("marks", _marks, is_optional=True),
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
