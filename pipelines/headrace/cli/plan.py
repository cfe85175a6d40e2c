"""The command plan: what a run will request, take and cost; and a short run to measure that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.table import Table

from headrace.cli import arguments
from headrace.cli.console import (
    JsonOption,
    SitesOption,
    amount,
    duration,
    hundredths,
    open_console,
    outlive_terminal,
    plain_table,
    tell,
    tell_json,
)
from headrace.cli.words import most_words
from headrace.errors import RecipeError, StepError
from headrace.execution.execute import LeasePreview, execute, planned
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.recipe import Recipe
from headrace.runs.prediction import BETWEEN, Frontier, Prediction
from headrace.runs.runs import RunRequest
from headrace.runs.suite_sites import asked_sites
from headrace.suites import values as sweep_values

CALIBRATION_STEPS = 50
"""Optimizer steps of a short training that measures how long a whole one takes."""

_BAR = 40
"""Width of the longest bar."""

_CALIBRATED = f"`headrace plan --calibrate` runs {CALIBRATION_STEPS} steps to measure it"
_SHORT = "run it once with arguments for a short training, then plan again"


def plan(
    recipe: arguments.Recipe,
    overrides: arguments.Overrides = None,
    site: SitesOption = None,
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
    and the queue is asked for its longest job. Several values of a key are a suite, as for
    `headrace sweep`; over several sites it shows time and cost by policies and deadlines.

    Examples:
        headrace plan digits --site slurm-dev
        headrace plan digits --site slurm-dev --dry-run
        headrace plan digits --calibrate
        headrace plan digits 'seed=range(0,20)' --site lab,aws suite.deadline=1d
    """
    plain, update = sweep_values.parse(overrides or ())
    given = (*plain, *sweep_values.as_overrides(update))
    first, changes = asked_sites(recipe, given, site)
    if measure:
        from headrace.cli.runs import request_of  # only a calibration needs it

        calibrate(request_of(recipe, plain, first))
    asked = load_recipe(recipe, changes)
    found = planned(asked, load_site(first))
    if as_json:
        name = "prediction" if found.frontier is None else "frontier"
        tell_json({"leases": found.leases, name: getattr(found, name)})
        return
    for each in found.leases:
        for line in lease_words(each):
            tell(line)
        if dry_run and each.script:
            typer.echo(f"\n{each.script}")
    if found.frontier is None:
        for line in plan_words(asked, found.prediction, found.leases):
            tell(line)
        return
    for part in frontier_shown(found.frontier):
        open_console().print(part)


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


def frontier_shown(found: Frontier) -> Iterator[str | Table]:
    """Yield what a suite takes and costs: by policies and deadlines, then bars of the cost."""
    if not found.points:
        yield f"no forecast: {found.source}"
        return
    yield found.source
    names = [each.site for each in found.sites]
    unpriced = {each.site for each in found.sites if each.usd_per_hour is None}
    more = "+?" if unpriced else ""
    table = plain_table("policy", "deadline", figures=("makespan", "cost", *names))
    for each in found.points:
        table.add_row(
            each.policy,
            duration(each.deadline_s) or "none",
            f"{duration(each.makespan_s.mean)} ± {duration(each.makespan_s.half)}",
            f"${hundredths(each.usd.mean)} ± {hundredths(each.usd.half)}{more}"
            if unpriced != {*names}
            else "?",
            *(
                "?" if name in unpriced else f"${hundredths(each.usd_of.get(name, 0.0))}"
                for name in names
            ),
        )
    yield table
    most = max(each.usd.mean for each in found.points)
    if not most:
        return
    bars = plain_table("", "", figures=("makespan",))
    for each in sorted(found.points, key=lambda each: each.makespan_s.mean):
        bar = f"{'█' * math.ceil(_BAR * each.usd.mean / most)} ${hundredths(each.usd.mean)}"
        bars.add_row(bar, each.policy, duration(each.makespan_s.mean))
    yield bars


def lease_words(lease: LeasePreview) -> Iterator[str]:
    """Yield what a run would request for a lease: machines, steps, time, its maximum cost."""
    at = f" at {lease.site}" if lease.site else ""
    yield f"{lease.role}{at}: {lease.machines}, for {', '.join(lease.steps)}"
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
