"""What processes that work on runs read first, read once by the one that they are forked from."""

from __future__ import annotations

from contextlib import suppress

from headrace.errors import HeadraceError
from headrace.informing import inform
from headrace.ledger.ledger import open_ledger
from headrace.recipe.backend import option_blocks
from headrace.recipe.load import available, site_now, written
from headrace.runs.planning import planner
from headrace.status.run_details import run_details


def warm_caches() -> None:
    """Fill this process's caches of recipes, sites, packages and the ledger's statements."""
    inform(None, "what processes read first", _read, within_s=None)  # threads are not forked


def _read() -> None:
    written("recipes")
    option_blocks()
    planner()
    for newest in open_ledger().runs(limit=1):
        run_details(newest.run_id)
    for name in available("sites"):
        with suppress(HeadraceError):  # reported when it is chosen
            site_now(name)
