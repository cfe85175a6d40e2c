"""Arguments of commands (recipes, sites, runs, suites), and their completion in a shell.

Completion runs at each press of Tab: it creates nothing, migrates nothing, waits for nothing, and
prints nothing if it fails. It imports what it needs only then: every command has these arguments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.errors import LedgerError

_MOST = 200


def recipes(incomplete: str) -> list[str]:
    """Return names of recipes."""
    from headrace.recipe.load import available

    return _beginning(incomplete, available("recipes"))


def sites(incomplete: str) -> list[str]:
    """Return names of sites."""
    from headrace.recipe.load import available

    return _beginning(incomplete, available("sites"))


def runs(incomplete: str) -> list[str]:
    """Return ids of runs, the newest first."""
    return _beginning(incomplete, _newest())


def suites(incomplete: str) -> list[str]:
    """Return ids of suites, the newest first."""
    from headrace.files.atomic import is_there
    from headrace.files.layout import RunFolder

    found = {run_id: RunFolder(Path(folder)) for run_id, folder in _newest().items()}
    return _beginning(incomplete, (run_id for run_id in found if is_there(found[run_id].source)))


def _newest() -> dict[str, str]:
    from headrace.ledger.newest import newest_runs

    os.environ.setdefault("PGCONNECT_TIMEOUT", "2")
    try:
        return newest_runs(_MOST)
    except LedgerError:  # completion stays silent: the command itself reports it
        return {}


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def a_site(help_: str) -> Any:
    """Return an option for a site."""
    return typer.Option(help=f"Name or file of a site; {help_}", autocompletion=sites)


def a_suite(help_: str, metavar: str) -> Any:
    """Return an argument for a suite."""
    return typer.Argument(metavar=metavar, help=help_, autocompletion=suites)


def a_run(help_: str, metavar: str | None = "RUN") -> Any:
    """Return an argument for a run."""
    return typer.Argument(metavar=metavar, help=help_, autocompletion=runs)


Recipe = Annotated[
    str, typer.Argument(help="Name of a recipe, or a YAML file.", autocompletion=recipes)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes to the recipe, as in trainer.max_epochs=3; +key=value adds a missing key, "
        "~key removes one."
    ),
]
RunArgument = Annotated[str | None, a_run("Run or SUITE:NUMBER; default: the newest run.")]
WholeRun = Annotated[str | None, a_run("Run or suite; default: the newest run.")]
NamedRun = Annotated[str, a_run("Run, SUITE:NUMBER, or latest.")]
OneSuite = Annotated[
    str | None,
    a_suite("Id of the suite; optional if there is only one, or only one is running.", "SUITE"),
]
AnySuite = Annotated[str | None, a_suite("Id of the suite; default: the newest one.", "SUITE")]
