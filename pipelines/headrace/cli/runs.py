"""Commands about runs: run, evaluate, resume, status, logs, cancel, and the list of runs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.cli import arguments
from headrace.cli.arguments import NamedRun, Recipe, RunArgument
from headrace.cli.bell import Bell
from headrace.cli.console import (
    JsonOption,
    SiteOption,
    amount,
    duration,
    open_console,
    outlive_terminal,
    output_is_gone,
    tell,
    tell_json,
)
from headrace.cli.listing import ListColumn, Listing
from headrace.cli.view import print_failures
from headrace.cli.watching import REFRESH_S, Watching, end_of, look
from headrace.cli.watching import watch as follow
from headrace.cli.words import money
from headrace.errors import UnknownNameError, nearest
from headrace.execution.end_run import ask_to_stop
from headrace.execution.execute import execute
from headrace.execution.resume import take_over_changed, take_over_run
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.overrides import check_size
from headrace.record import as_json_values
from headrace.runs.audit import Actor
from headrace.runs.planned_steps import steps_of
from headrace.runs.provenance import process_owner
from headrace.runs.runs import (
    Run,
    RunRequest,
    create_run,
    open_run,
    run_of_folder,
)
from headrace.runs.suites import has_more_to_do
from headrace.states import StepState
from headrace.status.run import Headline, RunView, Trials, run_views
from headrace.status.run_details import RunDetails, run_details, runs_page
from headrace.status.step import AttemptView, attempt_views, step_folders

app = typer.Typer(name="runs", invoke_without_command=True)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes to the recipe, as in trainer.max_epochs=3; +key=value adds a key that is "
        "not there, ~key takes one out."
    ),
]


def run(
    recipe: Recipe,
    overrides: Overrides = None,
    site: SiteOption = "laptop",
    pack_only: Annotated[bool, typer.Option(help="Only pack the dataset.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe on a site from this terminal, without Airflow.

    The command stays until the run has ended; Ctrl-C cancels it and closes its leases. A terminal
    that is closed ends nothing: `headrace status --watch` shows the run in another one. The exit
    code is 0 when the run succeeded, 1 when it did not, 2 when the request cannot be used.

    Examples:
        headrace run digits

        headrace run digits --site laptop trainer.max_epochs=3 seed=1

        headrace run my-recipe.yaml --site my-site.yaml
    """
    kind = "pack" if pack_only else "train"
    carry_out(create_run(request_of(recipe, overrides, site, kind=kind)), as_json=as_json)


def request_of(recipe: str, overrides: Sequence[str] | None, site: str, **more: Any) -> RunRequest:
    """What somebody asks for from this terminal; `more` are further fields of `RunRequest`."""
    if more.get("kind") != "suite":  # of which the sweeps are written out
        check_size(overrides or ())
    given = {"recipe": recipe, "site": site, "overrides": tuple(overrides or ()), **more}
    own = {"key": f"cli:{uuid.uuid4().hex}", "owner": process_owner()}
    return RunRequest.model_validate({**given, **own})


def carry_out(job: Run, *, as_json: bool) -> None:
    """Do a run in this process, show how it goes, and leave with the exit code of its end."""
    outlive_terminal()
    console, bell = open_console(stderr=as_json), Bell()
    with Watching(job.run_id, console) as tick:
        execute(job, tick)
    view = run_details(job.run_id)
    bell.ring(f"{job.run_id} {view.state.value}", console)
    tell_end(view, console, as_json=as_json)


def tell_end(view: RunDetails, console: Console, *, as_json: bool) -> None:
    """Show how a run has ended, and leave with exit code 1 when that is not well."""
    if as_json:
        tell_json(view)
    else:
        console.print(end_of(view))
    print_failures(view, console)
    if view.state is not StepState.SUCCEEDED:
        raise typer.Exit(1)


def evaluate(
    run_id: NamedRun,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to the run's recipe, as in evaluate.split=val."),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="best, last, a number of steps, or a file; as the recipe says.")
    ] = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="Each checkpoint as it comes, until training is over.")
    ] = False,
    site: Annotated[
        str,
        typer.Option(
            help="Name or file of a site; that of the run.", autocompletion=arguments.sites
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Evaluate checkpoints of a run, also while it trains.

    They have a lease of their own. This is a run of its own, with the recipe of the other one:
    other splits, metrics and figures are overrides of it, and `headrace resume` goes on with it.
    `train.role=cpu` takes the machines of another role of the site. With **--watch**, the values
    are also among the curves of the report of the run that trains.

    Examples:
        headrace evaluate digits-20260102-030405-0a1b2c3d --checkpoint best

        headrace evaluate RUN evaluate.split=val evaluate.also_checkpoints=[500,1000]

        headrace evaluate RUN --watch train.role=cpu evaluate.split=val
    """
    alone = ("evaluate.also_checkpoints=[]",) if checkpoint else ()
    chosen = (f"evaluate.checkpoint={checkpoint}",) if checkpoint else ()
    folder = RunFolder(Path(open_ledger().run(run_id).folder))
    request = request_of(
        str(folder.recipe),
        (*alone, *(overrides or ()), *chosen),
        site or run_of_folder(run_id, folder).request.site,
        kind="evaluate",
        of=run_id,
        watch=watch,
    )
    carry_out(create_run(request), as_json=as_json)


def resume(
    run_id: RunArgument = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to where and how wide it is run, as in train.nodes=1."),
    ] = None,
    site: Annotated[
        str,
        typer.Option(
            help="Name or file of a site with the same folder; it is read anew.",
            autocompletion=arguments.sites,
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted.

    Steps that have succeeded are not run again. Training goes on from its last checkpoint: with the
    nodes and ranks that it had, or with those that are asked for here. Batches and the order of
    samples stay. A run keeps its site as it was; with **--site** it goes on with another one, or
    with what its site file says now.

    Examples:
        headrace resume

        headrace resume digits-20260102-030405-0a1b2c3d train.nodes=1

        headrace resume RUN train.ranks_per_node=4 --site slurm-dev
    """
    changes = tuple(overrides or ())
    if run_id is not None and "=" in run_id:
        changes, run_id = (run_id, *changes), None
    known = known_run(run_id)
    view = run_details(known)
    has_more = has_more_to_do(RunFolder(Path(view.folder)))
    if view.state is StepState.SUCCEEDED and not has_more:
        console = open_console(stderr=as_json)
        console.print(f"{known} has succeeded; there is nothing to go on with.")
        tell_end(view, console, as_json=as_json)
        return
    if changes or site:
        job = take_over_changed(known, process_owner(), changes, site)
    else:
        job = take_over_run(known, process_owner())
    carry_out(job, as_json=as_json)


def status(
    run_id: RunArgument = None,
    watch: Annotated[bool, typer.Option(help="Until the run ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how a run stands: steps, progress, rate, time left.

    Of a suite it tells how its trials stand. With **--watch** that is told until it ends: as a
    table, or in lines where the output is no terminal.

    Examples:
        headrace status

        headrace status digits-20260102-030405-0a1b2c3d --watch

        headrace status --json
    """
    known = known_run(run_id)
    console = open_console()
    if as_json:
        tell_json(run_details(known))
        return
    if watch:
        follow(known, console)
    view = run_details(known)
    console.print(end_of(view) if view.state.is_final else look(view))
    print_failures(view, console)


def known_run(run_id: str | None) -> str:
    """Id of the run that is meant: the newest one when none is named."""
    newest = open_ledger().runs(limit=1)
    if run_id is None and not newest:
        raise UnknownNameError("There are no runs yet", "Start one: headrace run digits")
    return run_id or newest[0].run_id


def logs(
    run_id: RunArgument = None,
    step: Annotated[str | None, typer.Argument(help="Only this step.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
) -> None:
    """Print the logs of a run: driver and ranks of every attempt.

    Examples:
        headrace logs

        headrace logs digits-20260102-030405-0a1b2c3d train --follow
    """
    job = open_run(known_run(run_id))
    names = [planned.name for planned in steps_of(job.recipe, job.request.kind)]
    if step is not None and step not in names:
        raise UnknownNameError(f"This run has no step '{step}'", nearest(step, names))
    seen: dict[Path, int] = {}
    _print_new(job, step, seen)
    while follow and not output_is_gone() and run_details(job.run_id).goes_on:
        time.sleep(REFRESH_S)
        _print_new(job, step, seen)


def _print_new(job: Run, step: str | None, seen: dict[Path, int]) -> None:
    for attempt, folder in step_folders(job, step):
        for file in sorted((folder / "logs").glob("*.log")):
            with file.open("rb") as log:
                log.seek(seen.get(file, 0))
                text = log.read().decode(errors="replace")
                seen[file] = log.tell()
            for line in text.splitlines():
                typer.echo(f"{attempt.step}/{attempt.attempt} {file.stem} | {line}")


def cancel(
    run_id: RunArgument = None,
    step: Annotated[str | None, typer.Option(help="Only this step.")] = None,
) -> None:
    """Ask the running steps of a run to stop.

    Examples:
        headrace cancel digits-20260102-030405-0a1b2c3d
    """
    job = open_run(known_run(run_id))
    asked = ask_to_stop(job, Actor.here(), step)
    typer.echo(f"asked to stop: {', '.join(asked)}")


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
        tell_json(run_views(open_ledger().runs(limit, states)))
        return
    page = runs_page(limit, states)
    open_console().print(Listing.of(page.rows, *_COLUMNS))
    for act in page.refused:
        ago, why = duration(page.now - act.at), act.refused.splitlines()[0]
        tell(f"Refused {ago} ago to {Actor(act.user or 'somebody', act.through)}: {why}")


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
    """Time until its end; where nothing foretells that, until that of its step."""
    if row.eta_s is not None or row.step_eta_s is None:
        return duration(row.eta_s)
    return f"{duration(row.step_eta_s)} of {row.step}"


def _result(row: RunView) -> str:
    if row.is_orphan:
        return f"its process has ended: headrace resume {row.run_id}"
    if why := row.why or row.damage:
        step = f"{row.failure.step}: " if row.failure else ""
        return step + why.splitlines()[0]
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


def _took(row: AttemptView) -> str:
    if row.started_at is None:
        return ""
    return duration((row.finished_at or time.time()) - row.started_at)


def _asked(row: AttemptView) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.created_at))


def _cause(row: AttemptView) -> str:
    why = f"{row.failure_class.value}: " if row.failure_class else ""
    return f"{why}{row.message}"


_COLUMNS = (
    ListColumn(title="run", cell=lambda row: row.run_id),
    ListColumn(title="site", cell=lambda row: row.site),
    ListColumn(title="state", cell=lambda row: row.state.value),
    ListColumn(title="time", cell=lambda row: duration(row.elapsed_s), is_figure=True),
    ListColumn(title="left", cell=_left, is_figure=True, is_optional=True),
    ListColumn(title="cost", cell=lambda row: money(row.cost), is_figure=True, is_optional=True),
    ListColumn(title="result", cell=_result),
)

_ATTEMPT_COLUMNS = (
    ListColumn(title="step", cell=lambda row: row.step),
    ListColumn(title="attempt", cell=lambda row: str(row.attempt), is_figure=True),
    ListColumn(title="state", cell=lambda row: row.state.value),
    ListColumn(title="asked", cell=_asked, is_label=True),
    ListColumn(title="time", cell=_took, is_figure=True),
    ListColumn(title="lease", cell=lambda row: row.lease_id.removeprefix(f"{row.run_id}-")),
    ListColumn(title="why", cell=_cause),
)
