"""The command evaluate: any checkpoint of a run, judged in another way, or while it trains."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console import JsonOption
from headrace.cli.runs import carry_out
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.runs.provenance import process_owner
from headrace.runs.runs import RunRequest, create_run, run_of_folder


def evaluate(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")],
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
    site: Annotated[str, typer.Option(help="Name or file of a site; that of the run.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Evaluate the checkpoints of a run that has ended or is training, on a lease of their own.

    This is a run of its own, with the recipe of the other one: other splits, metrics and figures
    are overrides of it, and `headrace resume` goes on with it. `train.role=cpu` takes the machines
    of another role of the site. With **--watch**, the values are also among the curves of the
    report of the run that trains.

    Examples:
        headrace evaluate digits-20260102-030405-0a1b2c3d --checkpoint best

        headrace evaluate RUN evaluate.split=val evaluate.also_checkpoints=[500,1000]

        headrace evaluate RUN --watch train.role=cpu evaluate.split=val
    """
    alone = ("evaluate.also_checkpoints=[]",) if checkpoint else ()
    chosen = (f"evaluate.checkpoint={checkpoint}",) if checkpoint else ()
    folder = RunFolder(Path(open_ledger().run(run_id).folder))
    request = RunRequest(
        recipe=str(folder.recipe),
        site=site or run_of_folder(run_id, folder).request.site,
        overrides=(*alone, *(overrides or ()), *chosen),
        key=f"cli:{uuid.uuid4().hex}",
        owner=process_owner(),
        kind="evaluate",
        of=run_id,
        watch=watch,
    )
    carry_out(create_run(request), as_json=as_json)
