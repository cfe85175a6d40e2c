"""What processes that work on runs read first, read once by the one that they are forked from."""

from __future__ import annotations

import logging
from contextlib import suppress

from headrace.errors import HeadraceError
from headrace.ledger.ledger import open_ledger
from headrace.recipe.backend import option_blocks
from headrace.recipe.load import available, site_now, written
from headrace.runs.accounts import accounts
from headrace.status.run_details import run_details

logger = logging.getLogger(__name__)


def rehearse() -> None:
    """Fill this process's caches of recipes, sites, packages and the ledger's statements."""
    try:
        written("recipes")
        option_blocks()
        accounts()
        for newest in open_ledger().runs(limit=1):
            run_details(newest.run_id)
        for name in available("sites"):
            with suppress(HeadraceError):  # told when it is chosen
                site_now(name)
    except (HeadraceError, OSError, ValueError) as error:  # who needs it will be told
        logger.warning("Each process will read anew what it needs: %s", error)
