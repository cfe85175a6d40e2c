"""What commands are given: recipes, sites, runs and suites, and what a shell completes of them.

That is asked at each press of Tab: nothing is made, migrated or waited for, and nothing is said
where none is known. What it takes is imported only then: every command has these arguments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import LedgerError

_MOST = 200


def recipes(incomplete: str) -> list[str]:
    """Names of recipes."""
    from headrace.recipe.load import available

    return _beginning(incomplete, available("recipes"))


def sites(incomplete: str) -> list[str]:
    """Names of sites."""
    from headrace.recipe.load import available

    return _beginning(incomplete, available("sites"))


def runs(incomplete: str) -> list[str]:
    """Ids of runs, the newest first."""
    return _beginning(incomplete, _newest())


def suites(incomplete: str) -> list[str]:
    """Ids of suites, the newest first."""
    from headrace.files.atomic import is_there
    from headrace.files.layout import RunFolder

    found = {run_id: RunFolder(Path(folder)) for run_id, folder in _newest().items()}
    return _beginning(incomplete, (run_id for run_id in found if is_there(found[run_id].source)))


def _newest() -> dict[str, str]:
    from headrace.ledger.newest import newest_runs

    os.environ.setdefault("PGCONNECT_TIMEOUT", "2")
    try:
        return newest_runs(_MOST)
    except LedgerError:  # nobody asked for it: who runs a command is told
        return {}


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


Recipe = Annotated[
    str,
    typer.Argument(help="Name of a recipe, or a YAML file.", autocompletion=recipes),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes to the recipe, as in trainer.max_epochs=3; +key=value adds a key that is "
        "not there, ~key takes one out."
    ),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="Id of the run; the newest one when left out.",
        autocompletion=runs,
    ),
]
NamedRun = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.", autocompletion=runs)]
OneSuite = Annotated[
    str | None,
    typer.Argument(
        metavar="SUITE",
        help="Id of the suite; may be left out when only one is there, or goes on.",
        autocompletion=suites,
    ),
]
AnySuite = Annotated[
    str | None,
    typer.Argument(
        metavar="SUITE",
        help="Id of the suite; the newest one when left out.",
        autocompletion=suites,
    ),
]
