"""The command check: what training would fail on, by one real batch on this machine."""

from __future__ import annotations

import typer
from rich.console import Console

from headrace.cli import arguments
from headrace.cli.console import (
    JsonOption,
    SiteOption,
    duration,
    facts,
    open_console,
    tell_json,
    tidy_end,
)
from headrace.execution.check import CheckReport
from headrace.execution.check import check as checked


def check(
    recipe: arguments.Recipe,
    overrides: arguments.Overrides = None,
    site: SiteOption = "laptop",
    as_json: JsonOption = False,
) -> None:
    """Check a recipe on one real batch: reading, training step, validation, evaluation.

    It takes no lease and changes no file. The recipe is checked as **run** checks it. Then a
    process of this machine packs a few samples into a temporary folder, trains on one batch of up
    to 32, validates, writes a checkpoint and evaluates it. A script is not run. The exit code is 0
    if nothing was found that training would fail on, otherwise 1.

    Examples:
        headrace check digits
        headrace check my-recipe.yaml data.global_batch_size=64 --site my-cluster
    """
    with tidy_end():
        report = checked(recipe, overrides or (), site)
    if as_json:
        tell_json(report)
    else:
        _show(report, open_console())
    if not report.is_good:
        raise typer.Exit(1)


def _show(report: CheckReport, console: Console) -> None:
    measured = report.model_dump(exclude={"findings", "seconds"})
    console.print(facts((name, _shown(each)) for name, each in measured.items() if each))
    for each in report.findings:
        word, style = ("error", "bold red") if each.is_error else ("note", "bold yellow")
        console.print(f"{word}:", style=style, end=" ")
        text = filter(None, (f"{each.stage}: {each.what}", each.hint, each.trace.rstrip()))
        console.print("\n  ".join(text), highlight=False, soft_wrap=True)
    verdict = "" if report.findings else ": nothing found that training would fail on"
    console.print(f"checked in {duration(report.seconds)}{verdict}", highlight=False)


def _shown(value: object) -> str:
    """Return a number with separators, or words."""
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, float):
        return f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
