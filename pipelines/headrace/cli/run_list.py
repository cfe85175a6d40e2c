"""`headrace runs` and `mark`: the list of runs, all attempts of one, tags, notes and stars."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import arguments
from headrace.cli.arguments import NamedRun
from headrace.cli.console import JsonOption, amount, duration, moment, open_console, tell, tell_json
from headrace.cli.listing import ListColumn, Listing
from headrace.cli.words import ABANDONED, money, took_words
from headrace.errors import UserError, shortened
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import Marks, RunFilter
from headrace.recipe.load import parse
from headrace.record import as_json_values
from headrace.runs.audit import Actor
from headrace.states import StepState
from headrace.status.run import MainMetric, RunView, Trials, run_views
from headrace.status.run_list import found_runs, mark_runs, runs_page
from headrace.status.step import attempt_views

_MOST_OF_NOTE = 60
"""Characters of a note in the list."""

app = typer.Typer(name="runs", invoke_without_command=True)


@app.callback()
def runs(  # noqa: PLR0913  options of a command
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Most runs to list.")] = 20,
    state: Annotated[list[StepState] | None, typer.Option(help="Only this state.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind, or `all`; default: no packings, no rehearsals."),
    ] = None,
    user: Annotated[list[str] | None, typer.Option(help="Only of this user.")] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="Only of this recipe.", autocompletion=arguments.recipes),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only with this tag.")] = None,
    starred: Annotated[bool, typer.Option("--starred", help="Only with a star.")] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Override, seed, dataset or metric: lr=0.1, 'accuracy>0.9'."),
    ] = None,
    since: Annotated[str, typer.Option(help="First day: 2026-11-01, 2026-11, or 7d.")] = "",
    until: Annotated[str, typer.Option(help="Last day, the same way.")] = "",
    text: Annotated[str, typer.Option(help="Part of id, recipe, overrides, note, ….")] = "",
    sort: Annotated[
        str, typer.Option(help="Metric, best first; NAME:min, NAME:max or -NAME.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List runs, the newest first; `runs show` shows one.

    All filters hold together; of an option that is given several times one value is enough, but of
    `--tag` and `--where` all. Days are those of UTC. A key is dotted (`model.lr`) or its last part
    (`lr`).

    The main metric is what training monitors (`trainer.monitor`), else the first of evaluation by
    name, else the loss; with `--sort` it is that one, and runs without it come last. A suite shows
    its trials and the best value; a cross-validation the mean ± standard deviation of its folds.
    Time left and cost of machines are shown if they are known. Requests in Airflow that were
    refused since the oldest of these runs follow; `headrace audit --refused` shows them in full.
    `--json` has all overrides and metrics, of a suite those of its best trial.

    Examples:
        headrace runs
        headrace runs --since 7d --recipe digits --where lr=0.1 --sort accuracy
        headrace runs --tag paper --where 'accuracy>0.9' --json
        headrace runs --state failed --user ada
        headrace runs --kind pack
    """
    if context.invoked_subcommand is not None:
        return
    given = {name: value for name, value in context.params.items() if value and name != "as_json"}
    wanted = parse(RunFilter, given, "The filter of the list")
    if as_json:
        tell_json(found_runs(wanted, with_metrics=True))
        return
    page = runs_page(wanted)
    open_console().print(Listing.of(page.rows, *_COLUMNS))
    for act in page.refused:
        ago, why = duration(page.now - act.at), act.refused.splitlines()[0]
        tell(f"Refused {ago} ago to {Actor(act.user or 'a user', act.through)}: {why}")


def mark(
    run_ids: Annotated[list[str], arguments.a_run("Ids of runs.", "RUN...")],
    tag: Annotated[list[str] | None, typer.Option(help="Tag to add.")] = None,
    untag: Annotated[list[str] | None, typer.Option(help="Tag to remove.")] = None,
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
    given = {"tag": tag, "untag": untag, "note": note, "star": star}
    marks = parse(Marks, {name: each for name, each in given.items() if each is not None}, "Marks")
    if marks == Marks():
        raise UserError("There is nothing to change", "Give --tag, --untag, --note or --star.")
    mark_runs(run_ids, marks, Actor.here())


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


def _what(row: RunView) -> str:
    """Return what differs from other runs: overrides, dataset, seed."""
    seed = (
        () if row.seed is None or "seed" in {*map(_key, row.overrides)} else (f"seed={row.seed}",)
    )
    data = () if row.dataset in ("", row.recipe) else (f"dataset={row.dataset}",)
    return " ".join((*row.overrides, *data, *seed))


def _key(override: str) -> str:
    return override.lstrip("+").partition("=")[0]


def _marks(row: RunView) -> str:
    note = shortened(row.note.partition("\n")[0], _MOST_OF_NOTE)
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
