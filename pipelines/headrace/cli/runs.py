"""Commands that act on runs: run, sweep, evaluate, resume, cancel."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.cli import arguments
from headrace.cli.arguments import NamedRun, Overrides, Recipe, RunArgument
from headrace.cli.console import (
    JsonOption,
    SiteOption,
    SitesOption,
    open_console,
    outlive_terminal,
    tell_json,
)
from headrace.cli.detaching import Detaching, DetachOption
from headrace.cli.run_status import abandoned_runs
from headrace.cli.view import exit_as, print_failures
from headrace.cli.watching import Watching, end_of
from headrace.errors import UserError
from headrace.execution.execute import execute
from headrace.execution.reap import ask_to_stop, end_run
from headrace.execution.resume import take_over_changed, take_over_run
from headrace.files.layout import RunFolder
from headrace.informing import inform
from headrace.ledger.ledger import open_ledger
from headrace.recipe.overrides import check_size
from headrace.runs.audit import Actor
from headrace.runs.lifecycle import create_run
from headrace.runs.names import named, with_model
from headrace.runs.owners import process_owner
from headrace.runs.runs import Run, RunRequest, open_run, run_of_record
from headrace.runs.suite_sites import asked_sites, check_one_site
from headrace.runs.suites import ask, has_more_to_do
from headrace.states import StepState
from headrace.status.run_details import RunDetails, run_details
from headrace.suites import values as sweep_values


def run(  # noqa: PLR0913  options of a command
    recipe: Recipe,
    overrides: Overrides = None,
    site: SiteOption = "laptop",
    pack_only: Annotated[bool, typer.Option(help="Only pack the dataset.")] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="First do all steps with 64 samples, on one rank.")
    ] = False,
    rehearse_only: Annotated[
        bool, typer.Option("--rehearse-only", help="Do only that, not the run itself.")
    ] = False,
    detach: DetachOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe on a site from this terminal, without Airflow.

    The command stays until the run has ended; Ctrl-C cancels it and closes its leases. The run
    continues if the terminal is closed: `headrace attach` shows it in another one. The exit code
    is 0 if the run succeeded, 1 if it did not, 2 if the request is invalid, 3 if the model misses
    `evaluate.min_metrics` or `max_metrics`, 130 after Ctrl-C.

    With **--detach** the command checks the request, prints the run's id on standard output, and
    ends with code 0; the run continues in a process of its own.

    With **--rehearse** a run of its own first packs 64 samples of each split, stages them, trains
    for two steps and evaluates, on one rank of the same roles and in the same containers; the run
    begins only if that succeeds.

    Examples:
        headrace run digits
        headrace run digits --site laptop trainer.max_epochs=3 seed=1
        headrace run digits evaluate.min_metrics.accuracy=0.9 --json
        headrace run my-recipe.yaml --site my-site.yaml
        headrace run my-recipe.yaml --site my-site.yaml --rehearse
        RUN=$(headrace run digits --detach); headrace attach $RUN
    """
    leaving = Detaching(wanted=detach)
    if pack_only and (rehearse or rehearse_only):
        raise UserError("Packing alone has no rehearsal", "Leave --pack-only or --rehearse out.")
    given = partial(request_of, recipe, overrides, site)
    if rehearse and not rehearse_only:
        job = _rehearsed(given, leaving, as_json=as_json)
    else:
        job = create_run(given(kind="pack" if pack_only else "train", rehearses=rehearse_only))
    carry_out(job, leaving, as_json=as_json)


def _rehearsed(given: Callable[..., RunRequest], leaving: Detaching, *, as_json: bool) -> Run:
    """Return a run whose rehearsal has succeeded; else end what has begun, and exit."""
    begun = [create_run(given(rehearses=True))]
    try:
        begun.append(create_run(given()))
        leaving.leave(begun[1], as_json=as_json)
        carry_out(begun[0], leaving, as_json=False, to_stderr=as_json)
        return begun.pop()
    finally:
        for each in begun:
            if not open_ledger().run(each.run_id).state.is_final:
                end_run(each, StepState.CANCELLED, "the rehearsal did not succeed")


def request_of(
    recipe: str, overrides: Sequence[str] | None, *sites: str, **more: Any
) -> RunRequest:
    """Return a request from this terminal; `more` are further fields of `RunRequest`."""
    if more.get("kind") == "suite":  # its sweeps are checked when written out
        site, overrides = asked_sites(recipe, overrides or (), sites)
    else:
        site = ",".join(sites)
        check_size(overrides or ())
        check_one_site(site)
    given = {"recipe": recipe, "site": site, "overrides": tuple(overrides or ()), **more}
    own = {"key": f"cli:{uuid.uuid4().hex}", "owner": process_owner()}
    return RunRequest.model_validate({**given, **own})


def carry_out(
    job: Run, leaving: Detaching | None = None, *, as_json: bool, to_stderr: bool = False
) -> None:
    """Do a run in this process, show its progress, and exit with code 1 if it did not succeed."""
    if leaving is not None:
        leaving.leave(job, as_json=as_json)
    outlive_terminal()
    console = open_console(stderr=as_json or to_stderr)
    with Watching(job.run_id, console, job.folder) as tick:
        execute(job, tick)
    tell_end(run_details(job.run_id), console, as_json=as_json)


def tell_end(view: RunDetails, console: Console, *, as_json: bool) -> None:
    """Show how a run has ended; exit with code 1, or 3 for its metrics, if it did not succeed."""
    if as_json:
        tell_json(view)

    def show() -> None:
        if not as_json:
            console.print(end_of(view))
        print_failures(view, console)

    inform(RunFolder(Path(view.folder)), "end of the run on the terminal", show, within_s=None)
    exit_as(view)


def sweep(
    recipe: Recipe,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Values as for Hydra's multirun: model.lr=1e-3,1e-2 'seed=range(0,5)'; a key with "
            "one value changes the recipe for all trials."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Points that a sampler proposes, instead of all combinations."),
    ] = None,
    site: SitesOption = None,
    detach: DetachOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run many trials of a recipe, by its suite and the arguments.

    The dataset is packed once; then the trials share one lease, or of several sites one of each:
    `suite.policy`, `suite.deadline` and `suite.budget` say which of the sites are used. The command
    stays until they have ended. Ctrl-C cancels running trials, and `headrace resume` continues: a
    complete trial is never run twice. The trials continue if the terminal is closed, and with
    **--detach** from the start: `headrace attach` shows them in another one. The exit code is 0 if
    the suite succeeded, even if some trials have failed.

    Examples:
        headrace sweep digits data.global_batch_size=32,64 'seed=range(0,3)'
        headrace sweep my-recipe.yaml 'model.lr=tag(log, interval(1e-5, 1e-1))' --trials 50
        headrace sweep digits 'seed=range(0,20)' --detach
        headrace sweep my-recipe.yaml 'seed=range(0,20)' --site lab,box suite.deadline=8h
    """
    leaving = Detaching(wanted=detach)
    overrides, update = sweep_values.parse(words or (), trials=trials)
    overrides = (*overrides, *sweep_values.as_overrides(update))
    request = request_of(recipe, overrides, *(site or ()), kind="suite")
    carry_out(create_run(request), leaving, as_json=as_json)


def evaluate(  # noqa: PLR0913  options of a command
    run_id: NamedRun,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to the run's recipe, as in evaluate.split=val."),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="best, last, a number of steps, or a file; default: the recipe's.")
    ] = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="Each new checkpoint, until the training ends.")
    ] = False,
    site: Annotated[str, arguments.a_site("default: the run's.")] = "",
    detach: DetachOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate checkpoints of a run, also while it trains.

    The checkpoints get a lease of their own. This is a separate run with the recipe of the other:
    overrides change its splits, metrics and figures, and `headrace resume` continues it.
    `train.role=cpu` takes the machines of another role of the site. With **--watch**, the values
    are also among the curves in the report of the training run.

    Examples:
        headrace evaluate digits-20260102-030405-0a1b2c3d --checkpoint best
        headrace evaluate RUN evaluate.split=val evaluate.also_checkpoints=[500,1000]
        headrace evaluate SUITE:7 evaluate.split=val
        headrace evaluate RUN --watch train.role=cpu evaluate.split=val --detach
    """
    leaving = Detaching(wanted=detach)
    found, checkpoint = with_model(run_id, checkpoint)
    alone = ("evaluate.also_checkpoints=[]",) if checkpoint else ()
    chosen = (f"evaluate.checkpoint={checkpoint}",) if checkpoint else ()
    changes = (*alone, *(overrides or ()), *chosen)
    place = site or run_of_record(found.at_site.record).request.site
    more = {"kind": "evaluate", "of": found.name, "watch": watch}
    request = request_of(str(found.folder.recipe), changes, place, **more)
    carry_out(create_run(request), leaving, as_json=as_json)


def resume(  # noqa: PLR0913  options of a command
    run_id: arguments.WholeRun = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to place and size of the run, as in train.nodes=1."),
    ] = None,
    site: Annotated[
        str, arguments.a_site("it has the same folder, and its file is read again.")
    ] = "",
    new_code: Annotated[
        bool, typer.Option("--new-code", help="Take the code as it is now; this is recorded.")
    ] = False,
    abandoned: Annotated[
        bool, typer.Option("--abandoned", help="All your abandoned runs, each with --detach.")
    ] = False,
    detach: DetachOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a run that was interrupted.

    Steps that have succeeded are not run again. Training continues from its last checkpoint, with
    the same nodes and ranks as before or those given here. Batches and the order of samples stay.
    A run keeps its site as it was; with **--site** it continues on another site, or with the
    current content of its site file. It also keeps its code as it was submitted, unless
    **--new-code** is given. With **--abandoned** all your runs continue whose process has ended
    early, as after a reboot of this machine.

    Examples:
        headrace resume
        headrace resume --abandoned
        headrace resume digits-20260102-030405-0a1b2c3d train.nodes=1
        headrace resume RUN train.ranks_per_node=4 --site slurm-dev
        headrace resume RUN --new-code
    """
    if abandoned:
        if run_id or overrides or site or new_code:
            raise UserError("--abandoned stands alone", "Leave it out to resume one run.")
        _resume_abandoned()
        return
    leaving = Detaching(wanted=detach)
    changes = tuple(overrides or ())
    if run_id is not None and "=" in run_id:
        changes, run_id = (run_id, *changes), None
    known = open_run(named(run_id).name).run_id
    view = run_details(known)
    if view.state is StepState.SUCCEEDED and not has_more_to_do(RunFolder(Path(view.folder))):
        console = open_console(stderr=as_json)
        console.print(f"{known} has succeeded; there is nothing to continue.")
        tell_end(view, console, as_json=as_json)
        return
    if changes or site or new_code:
        job = take_over_changed(known, process_owner(), changes, site, new_code=new_code)
    else:
        job = take_over_run(known, process_owner())
    carry_out(job, leaving, as_json=as_json)


def _resume_abandoned() -> None:
    """Resume each abandoned run of this user by a command of its own.

    Exit with code 1 if a run could not be resumed; the others continue.
    """
    if not (found := abandoned_runs()):
        open_console(stderr=True).print("No run of yours on this machine is abandoned.")
    codes = [subprocess.call([sys.argv[0], "resume", run_id, "--detach"]) for run_id in found]
    if any(codes):
        raise typer.Exit(1)


def cancel(
    run_id: RunArgument = None,
    step: Annotated[str | None, typer.Option(help="Only this step.")] = None,
) -> None:
    """Ask the running steps of a run to stop.

    A run that waits for machines ends.

    Examples:
        headrace cancel digits-20260102-030405-0a1b2c3d
    """
    found = named(run_id)
    if found.trial is not None:
        ask(found.record, "cancel", [found.trial.number])
    asked = ("train",) if found.trial else ask_to_stop(open_run(found.name), Actor.here(), step)
    typer.echo(f"asked to stop: {', '.join(asked)}" if asked else f"cancelled: {found.name}")
