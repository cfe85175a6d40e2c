"""The command plan: what a run will request, take and cost; and a short run to measure that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from headrace.cli import arguments
from headrace.cli.console import (
    JsonOption,
    SiteOption,
    amount,
    duration,
    hundredths,
    open_console,
    outlive_terminal,
    tell,
    tell_json,
)
from headrace.cli.words import most_words
from headrace.errors import RecipeError, StepError
from headrace.execution.execute import LeasePreview, execute, previews
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.overrides import check_size
from headrace.recipe.recipe import Recipe
from headrace.runs.planning import predicted
from headrace.runs.prediction import BETWEEN, Prediction
from headrace.runs.runs import RunRequest

CALIBRATION_STEPS = 50
"""Optimizer steps of a short training that measures how long a whole one takes."""

_CALIBRATED = f"`headrace plan --calibrate` runs {CALIBRATION_STEPS} steps to measure it"
_SHORT = "run it once with arguments for a short training, then plan again"


def plan(
    recipe: arguments.Recipe,
    overrides: arguments.Overrides = None,
    site: SiteOption = "laptop",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Also print the exact scripts of the jobs.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--calibrate", help="Do a short run there first, of 50 steps.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a run would request from a site, take and cost.

    It shows leases, time limits, time and cost. Time and cost come from earlier runs of the recipe
    on the site, with 80 % intervals. Only --calibrate submits or writes anything; `RUN` stands for
    the id of the run. For a role with `lifetime: auto`, the chosen time and the reason are shown,
    and the queue is asked for its longest job.

    Examples:
        headrace plan digits --site slurm-dev
        headrace plan digits --site slurm-dev --dry-run
        headrace plan digits --calibrate
    """
    check_size(overrides or ())
    if measure:
        from headrace.cli.runs import request_of  # only a calibration needs it

        calibrate(request_of(recipe, overrides, site))
    asked, place = load_recipe(recipe, overrides or ()), load_site(site)
    kind = "train" if asked.suite is None else "suite"
    found, prediction = previews(asked, place, kind), predicted(asked, place, kind)
    if as_json:
        tell_json({"leases": found, "prediction": prediction})
        return
    for each in found:
        for line in lease_words(each):
            tell(line)
        if dry_run and each.script:
            typer.echo(f"\n{each.script}")
    for line in plan_words(asked, prediction, found):
        tell(line)


def calibrate(request: RunRequest) -> None:
    """Do a run with few optimizer steps, so that the ledger has a similar run; show its progress.

    Raises:
        RecipeError: The recipe trains by a script, which headrace cannot shorten.
        StepError: A step of it fails.
    """
    from headrace.cli.watching import Watching
    from headrace.runs.lifecycle import create_run

    recipe = load_recipe(request.recipe, request.overrides)
    if recipe.train.is_script:
        raise RecipeError(
            f"{recipe.name} trains by a script, which headrace cannot limit to a few steps",
            f"{_SHORT[0].upper()}{_SHORT[1:]}.",
        )
    most = recipe.trainer.max_steps
    steps = CALIBRATION_STEPS if most < 0 else min(most, CALIBRATION_STEPS)
    overrides = (*request.overrides, f"trainer.max_steps={steps}")
    run = create_run(request.model_copy(update={"overrides": overrides}))
    outlive_terminal()
    with Watching(run.run_id, open_console(stderr=True), run.folder) as tick:
        failed = execute(run, tick)
    if failed is not None:
        raise StepError(
            f"The short run {run.run_id} has failed: {failed.state.value}",
            f"See why: headrace status {run.run_id}",
        )


def lease_words(lease: LeasePreview) -> Iterator[str]:
    """Yield what a run would request for a lease: machines, steps, time, its maximum cost."""
    yield f"{lease.role}: {lease.machines}, for {', '.join(lease.steps)}"
    for line in filter(None, (lease.time, lease.loss, most_words(lease.cost))):
        yield f"  {line}"


def plan_words(recipe: Recipe, found: Prediction, leases: Sequence[LeasePreview]) -> Iterator[str]:
    """Yield what a run will take, by its parts; or which parts are unknown, and what to do."""
    if found.parts:
        parts = ", ".join(
            f"{'time between' if part.name == BETWEEN else part.name} {duration(part.seconds)}"
            for part in found.parts
        )
        runs = max(part.num_known for part in found.parts)
        whole = (
            "" if found.seconds is None
            else f"takes {duration(found.seconds)} ± {duration(found.half_s)}: "
        )  # fmt: skip
        yield f"{whole}{parts}, by {runs} earlier run{'s' if runs > 1 else ''}"
    if found.unknown:
        yield (
            f"no earlier run shows how long {', '.join(found.unknown)} will take here; "
            f"{_SHORT if recipe.train.is_script else _CALIBRATED}"
        )
    if recipe.dataset is None:
        yield "nothing is packed or staged: the recipe has no dataset"
    seconds = {part.name: part.seconds for part in found.parts}
    for lease in leases:
        rate = None if lease.cost is None else lease.cost.usd_per_hour
        if rate is not None and all(step in seconds for step in lease.steps):
            hours = sum(seconds[step] for step in lease.steps) / 3600.0
            usd = hundredths(rate * hours)
            yield f"{lease.role}: {hundredths(hours)} h of it, which cost ${usd}"
    if found.gpu_hours:
        yield f"{hundredths(found.gpu_hours)} GPU-hours"
    if found.num_bytes is not None:
        yield f"the packed dataset has {amount(found.num_bytes)}B"
