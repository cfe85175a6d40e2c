"""Commands about runs: run, plan, resume, status, logs, runs, cancel."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli.console import (
    JsonOption,
    SiteOption,
    amount,
    duration,
    keep_whole,
    open_console,
    output_is_gone,
)
from headrace.cli.costs import most_words
from headrace.cli.view import closing, live, print_failures
from headrace.cli.watching import REFRESH_S, Watching
from headrace.errors import StepError, UnknownNameError, nearest
from headrace.ledger.ledger import open_ledger
from headrace.ledger.records import RunRecord
from headrace.recipe.load import load_recipe, load_site
from headrace.runs.execute import execute, previews
from headrace.runs.flow import steps_of
from headrace.runs.overview import (
    RunView,
    overview,
    step_folders,
    why_failed,
    why_no_lease,
)
from headrace.runs.provenance import owner_is_gone, process_owner
from headrace.runs.runs import Run, RunRequest, create_run, open_run, take_over_run
from headrace.runs.steps import cancel_step
from headrace.states import StepState

Recipe = Annotated[str, typer.Argument(help="Name of a recipe, or a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes to the recipe, as in trainer.max_epochs=3; +key=value adds a key that is "
        "not there, ~key takes one out."
    ),
]
RunArgument = Annotated[
    str | None, typer.Argument(help="Id of the run; the newest one when left out.")
]
_TOLD = ("step", "attempt", "state", "failure_class", "message")


def run(
    recipe: Recipe,
    overrides: Overrides = None,
    site: SiteOption = "laptop",
    pack_only: Annotated[bool, typer.Option(help="Only pack the dataset.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe on a site from this terminal, without Airflow.

    The command stays until the run has ended; Ctrl-C cancels it and closes its leases. The exit
    code is 0 when the run succeeded, 1 when it did not, 2 when the request cannot be used.

    Examples:
        headrace run digits

        headrace run digits --site laptop trainer.max_epochs=3 seed=1

        headrace run my-recipe.yaml --site my-site.yaml
    """
    request = RunRequest(
        recipe=recipe,
        site=site,
        overrides=tuple(overrides or ()),
        key=f"cli:{uuid.uuid4().hex}",
        owner=process_owner(),
        kind="pack" if pack_only else "train",
    )
    carry_out(create_run(request), as_json=as_json)


def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    site: SiteOption = "laptop",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the exact scripts of the jobs, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would ask of a site: leases, their steps and time limits.

    Nothing is submitted or written; `RUN` stands for the id of the run. Where a role has `lifetime:
    auto`, the chosen time and the reason are told, and the queue is asked for its longest job.

    Examples:
        headrace plan digits --site slurm-dev
        headrace plan digits --site slurm-dev --dry-run
    """
    found = previews(load_recipe(recipe, overrides or ()), load_site(site))
    if as_json:
        typer.echo(json.dumps([each.model_dump() for each in found], indent=1))
        return
    for each in found:
        typer.echo(f"{each.role}: {each.machines}, for {', '.join(each.steps)}")
        for line in filter(None, (each.time, each.loss, most_words(each.cost))):
            typer.echo(f"  {line}")
        if dry_run and each.script:
            typer.echo(f"\n{each.script}")


def resume(run_id: RunArgument = None, as_json: JsonOption = False) -> None:
    """Go on with a run that was interrupted: steps that have succeeded are not run again.

    Training goes on from its last checkpoint.

    Examples:
        headrace resume

        headrace resume digits-20260102-030405-0a1b2c3d
    """
    known = _known(run_id)
    if (view := overview(known)).state is StepState.SUCCEEDED:
        console = open_console(stderr=as_json)
        console.print(f"{known} has succeeded; there is nothing to go on with.")
        _tell_end(view, console, as_json=as_json)
        return
    carry_out(take_over_run(known, process_owner()), as_json=as_json)


def carry_out(job: Run, *, as_json: bool) -> None:
    """Do a run in this process, show how it goes, and leave with the exit code of its end."""
    console = open_console(stderr=as_json)
    with Watching(job.run_id, console) as tick:
        execute(job, tick)
    view = overview(job.run_id)
    _tell_end(view, console, as_json=as_json)


def _tell_end(view: RunView, console: Console, *, as_json: bool) -> None:
    if as_json:
        typer.echo(view.model_dump_json(indent=1))
    else:
        console.print(closing(view))
    print_failures(view, console)
    if view.state is not StepState.SUCCEEDED:
        raise typer.Exit(1)


def status(
    run_id: RunArgument = None,
    watch: Annotated[bool, typer.Option(help="Keep the table fresh until the run ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how a run stands: steps, progress, rate, time left.

    Examples:
        headrace status

        headrace status digits-20260102-030405-0a1b2c3d --watch

        headrace status --json
    """
    known = _known(run_id)
    console = open_console()
    if as_json:
        typer.echo(overview(known).model_dump_json(indent=1))
        return
    if watch and console.is_terminal:
        with Live(console=console, auto_refresh=False) as screen:
            while _goes_on(view := overview(known)):
                screen.update(live(view), refresh=True)
                time.sleep(REFRESH_S)
    view = overview(known)
    console.print(closing(view) if view.state.is_final else live(view))
    print_failures(view, console)


def _goes_on(view: RunView) -> bool:
    """Whether somebody still works on a run."""
    return not view.state.is_final and not view.owner_is_gone


def _known(run_id: str | None) -> str:
    newest = open_ledger().runs(limit=1)
    if run_id is None and not newest:
        raise UnknownNameError("There are no runs yet", "Start one: headrace run digits")
    return run_id or newest[0].run_id


def logs(
    run_id: RunArgument = None,
    step: Annotated[str | None, typer.Argument(help="Only this step.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
) -> None:
    """Print the logs of a run's steps: driver and ranks of every attempt.

    Examples:
        headrace logs

        headrace logs digits-20260102-030405-0a1b2c3d train --follow
    """
    job = open_run(_known(run_id))
    names = [planned.name for planned in steps_of(job.recipe, job.request.kind)]
    if step is not None and step not in names:
        raise UnknownNameError(f"This run has no step '{step}'", nearest(step, names))
    seen: dict[Path, int] = {}
    _print_new(job, step, seen)
    while follow and not output_is_gone() and _goes_on(overview(job.run_id)):
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


def runs(
    limit: Annotated[int, typer.Option(min=1, help="Newest runs to list.")] = 20,
    state: Annotated[StepState | None, typer.Option(help="Only runs in this state.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, the newest first.

    Examples:
        headrace runs

        headrace runs --state failed --json
    """
    records = open_ledger().runs(limit=limit, state=state)
    if as_json:
        typer.echo(json.dumps([_for_programs(row) for row in records], indent=1))
        return
    table = Table("run", "site", "state", "time", box=None, pad_edge=False)
    table.add_column("result", overflow="fold")
    keep_whole(table.columns[0], [row.run_id for row in records])
    for row in records:
        end = row.finished_at or time.time()
        took = duration(end - row.created_at)
        table.add_row(row.run_id, row.site_name, row.state.value, took, Text(_result(row)))
    open_console().print(table)


def _for_programs(row: RunRecord) -> dict[str, object]:
    failed = why_failed(row)
    told = {name: getattr(failed, name) for name in _TOLD} if failed else None
    return {**asdict(row), "failure": told}


def _result(row: RunRecord) -> str:
    if not row.state.is_final and owner_is_gone(row.owner):
        return f"its process has ended: headrace resume {row.run_id}"
    failed = why_failed(row)
    if failed is not None:
        first_line = (failed.message or failed.state.value).splitlines()[0]
        return f"{failed.step}: {first_line}"
    if why := why_no_lease(row):
        return why.splitlines()[0]
    evaluated = row.outputs.get("evaluate")
    metrics = evaluated.get("metrics") if isinstance(evaluated, dict) else None
    accuracy = metrics.get("accuracy") if isinstance(metrics, dict) else None
    return f"accuracy {amount(accuracy)}" if isinstance(accuracy, float) else ""


def cancel(
    run_id: RunArgument = None,
    step: Annotated[str | None, typer.Option(help="Only this step.")] = None,
) -> None:
    """Ask the running steps of a run to stop.

    Examples:
        headrace cancel digits-20260102-030405-0a1b2c3d
    """
    job = open_run(_known(run_id))
    names = [planned.name for planned in steps_of(job.recipe, job.request.kind)]
    asked = [
        name
        for name in ([step] if step else names)
        if cancel_step(job, name, "asked by `headrace cancel`")
    ]
    if not asked:
        raise StepError(f"No step of run {job.run_id} is running")
    typer.echo(f"asked to stop: {', '.join(asked)}")
