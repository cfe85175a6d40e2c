"""Runs a pack step by its driver, without a lease."""

from __future__ import annotations

from pathlib import Path

from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.recipe.load import load_recipe, load_site
from headrace.steps.mailbox import StepSpec
from headrace.steps.run import main


def drive(folder: Path, recipe: str) -> None:
    """Run the pack step of a recipe on site `here`, in `folder`."""
    run = RunFolder(folder / "run")
    write_record(run.recipe, load_recipe(recipe))
    write_record(run.site, load_site("here"))
    step = StepFolder(folder)
    spec = StepSpec(
        key=f"driven/{recipe}/1",
        kind="pack",
        run_id="driven",
        name="pack",
        attempt=1,
        run_folder=str(run.path),
    )
    write_record(step.spec, spec)
    main([str(folder)])
