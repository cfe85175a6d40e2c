"""`headrace plan`: what a run would ask of a site."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headrace.control.preview import previews
from headrace.recipe.load import load_recipe, load_site


def register(app: typer.Typer) -> None:
    """Add `headrace plan` to the command line."""
    app.command("plan")(plan)


def plan(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe, or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe, as in trainer.max_epochs=3.")
    ] = None,
    site: Annotated[str, typer.Option(help="Name of a site, or a YAML file.")] = "laptop",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the exact scripts of the jobs, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
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
        typer.echo(f"  {each.time}")
        if dry_run and each.script:
            typer.echo(f"\n{each.script}")
