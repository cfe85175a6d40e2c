"""The command resume: go on with a run, if need be on other machines or with fewer of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console import JsonOption, open_console
from headrace.cli.runs import carry_out, known_run, tell_end
from headrace.files.layout import RunFolder
from headrace.runs.overview import overview
from headrace.runs.provenance import process_owner
from headrace.runs.resuming import take_over_changed
from headrace.runs.runs import take_over_run
from headrace.runs.suites import has_more_to_do
from headrace.states import StepState


def resume(
    run_id: Annotated[
        str | None, typer.Argument(help="Id of the run; the newest one when left out.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to where and how wide it is run, as in train.nodes=1."),
    ] = None,
    site: Annotated[
        str, typer.Option(help="Name or file of a site with the same folder; it is read anew.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted: steps that have succeeded are not run again.

    Training goes on from its last checkpoint: with the nodes and ranks that it had, or with those
    that are asked for here. Batches and the order of samples stay. A run keeps its site as it was;
    with **--site** it goes on with another one, or with what its site file says now.

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
