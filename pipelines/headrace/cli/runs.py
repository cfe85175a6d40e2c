"""Commands about runs: run, evaluate, resume, status, logs, cancel."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from headrace.cli import arguments
from headrace.cli.arguments import NamedRun, Recipe, RunArgument
from headrace.cli.bell import Bell
from headrace.cli.console import (
    JsonOption,
    SiteOption,
    open_console,
    outlive_terminal,
    output_is_gone,
)
from headrace.cli.view import closing, print_failures
from headrace.cli.watching import REFRESH_S, Watching, look
from headrace.errors import UnknownNameError, nearest
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.overrides import check_size
from headrace.runs.audit import Actor
from headrace.runs.execute import execute
from headrace.runs.flow import steps_of
from headrace.runs.overview import RunView, overview, step_folders
from headrace.runs.provenance import process_owner
from headrace.runs.resuming import take_over_changed, take_over_run
from headrace.runs.runs import (
    Run,
    RunRequest,
    create_run,
    open_run,
    run_of_folder,
)
from headrace.runs.stopping import ask_to_stop
from headrace.runs.suites import has_more_to_do
from headrace.states import StepState

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
    view = overview(job.run_id)
    bell.ring(f"{job.run_id} {view.state.value}", console)
    tell_end(view, console, as_json=as_json)


def tell_end(view: RunView, console: Console, *, as_json: bool) -> None:
    """Show how a run has ended, and leave with exit code 1 when that is not well."""
    if as_json:
        typer.echo(view.model_dump_json(indent=1))
    else:
        console.print(closing(view))
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
    view = overview(known)
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
    watch: Annotated[bool, typer.Option(help="Keep the table fresh until the run ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how a run stands: steps, progress, rate, time left.

    Examples:
        headrace status

        headrace status digits-20260102-030405-0a1b2c3d --watch

        headrace status --json
    """
    known = known_run(run_id)
    console = open_console()
    if as_json:
        typer.echo(overview(known).model_dump_json(indent=1))
        return
    if watch and console.is_terminal:
        with Live(console=console, auto_refresh=False) as screen:
            while not output_is_gone() and _goes_on(view := overview(known)):
                screen.update(look(view), refresh=True)
                time.sleep(REFRESH_S)
    view = overview(known)
    console.print(closing(view) if view.state.is_final else look(view))
    print_failures(view, console)


def _goes_on(view: RunView) -> bool:
    """Whether somebody still works on a run."""
    return not view.state.is_final and not view.owner_is_gone


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
