"""The command check: what training would fail on, by one real batch on this machine."""

from __future__ import annotations

import typer

from headrace.cli import arguments
from headrace.cli.console import JsonOption, SitesOption, tell_json, tidy_end
from headrace.cli.site import print_findings
from headrace.execution.check import check as checked


def check(
    recipe: arguments.Recipe,
    overrides: arguments.Overrides = None,
    site: SitesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a recipe on one real batch, without a lease.

    No file is changed. The recipe is checked as **run** checks it. Then a
    process of this machine packs a few samples into a temporary folder, trains on one batch of up
    to 32, validates, writes a checkpoint and evaluates it. A script is not run. The exit code is 1
    if training would fail on something.

    Examples:
        headrace check digits
        headrace check my-recipe.yaml data.global_batch_size=64 --site my-cluster
    """
    with tidy_end():
        found = checked(recipe, overrides or (), site)
    if as_json:
        tell_json(found)
    else:
        print_findings(found)
    if found.has_failed:
        raise typer.Exit(1)
