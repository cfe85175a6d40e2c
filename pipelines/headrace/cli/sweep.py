"""The command sweep: many trials of one recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.arguments import Recipe
from headrace.cli.console import JsonOption, SiteOption
from headrace.cli.runs import carry_out, request_of
from headrace.runs.runs import create_run
from headrace.suites import values as sweep_values


def sweep(
    recipe: Recipe,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Values as for Hydra's multirun: model.lr=1e-3,1e-2 'seed=range(0,5)'; what has "
            "one value changes the recipe for all trials."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Points that a sampler proposes, in place of all combinations."),
    ] = None,
    site: SiteOption = "laptop",
    as_json: JsonOption = False,
) -> None:
    """Run many trials of a recipe, as its suite and the words say.

    The dataset is packed once; then the trials share one lease. The command stays until they have
    ended; Ctrl-C cancels those that run, and `headrace resume` goes on: nothing that has finished
    is run twice. A terminal that is closed ends none: `headrace suite watch` shows them in another
    one. The exit code is 0 when the suite succeeded, even if some trials have failed.

    Examples:
        headrace sweep digits data.global_batch_size=32,64 'seed=range(0,3)'

        headrace sweep my-recipe.yaml 'model.lr=tag(log, interval(1e-5, 1e-1))' --trials 50
    """
    overrides, update = sweep_values.parse(words or (), trials=trials)
    overrides = (*overrides, *sweep_values.as_overrides(update))
    request = request_of(recipe, overrides, site, kind="suite")
    carry_out(create_run(request), as_json=as_json)
