"""Pages, and columns of the list of runs, from other packages."""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from headrace.entry_points import load_entry, names_in
from headrace.errors import UserError
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.status.run import RunView
from headrace.status.run_list import RunsPage, runs_page

logger = logging.getLogger(__name__)

GROUP = "headrace.pages"
"""Entry points: each a `Page`; its name is its address."""

_MOST_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class Page:
    """Addition of a package: a page, columns of the list of runs, or both."""

    title: str = ""
    """Title in the navigation; without one there is no page."""
    script: Path = Path()
    """JavaScript module of the page, whose default export is its component (Preact)."""
    answer: Callable[[Sites], Record] | None = None
    """Returns the page's data, of the sites whose runs the user may see (None: all); requested at
    `data/added?name=NAME`."""
    columns: Mapping[str, Callable[[RunView], str | float | None]] = field(default_factory=dict)
    """Functions from a run to the text of a column, by titles; at most 200 characters."""


class Cell(Record):
    """Content of a column for a run, or why it is empty."""

    value: str | float | None = None
    why: str = ""


class RunsWithColumns(RunsPage):
    """Runs, with the columns of other packages."""

    columns: tuple[str, ...] = ()
    cells: dict[str, tuple[Cell, ...]] = {}
    """Of each run, in the order of the columns."""


@cache
def added() -> Mapping[str, Page]:
    """Return the additions of packages, by name; unusable ones are logged once and left out."""
    found = {}
    for name in names_in(GROUP):
        try:
            page = load_entry(GROUP, name)
        except UserError as error:
            logger.warning("%s %s", error.what, error.hint)
            continue
        if isinstance(page, Page):
            found[name] = page
        else:
            logger.warning("'%s' of %s is a %s, not a Page", name, GROUP, type(page).__name__)
    return found


def shell(text: str) -> str:
    """Return the HTML of all pages, with those of other packages in the navigation."""
    tabs = [(name, page.title) for name, page in added().items() if page.title]
    return text.replace("{added}", html.escape(json.dumps(tabs)))


def runs_with_columns(*question: Any) -> RunsWithColumns:
    """Return `runs_page` with the columns of other packages."""
    page = runs_page(*question)
    columns = [each for one in added().values() for each in one.columns.items()]
    cells = {row.run_id: tuple(_cell(*each, row) for each in columns) for row in page.rows}
    return RunsWithColumns(
        **{name: getattr(page, name) for name in RunsPage.model_fields},
        columns=tuple(title for title, _ in columns),
        cells=cells if columns else {},
    )


_logged: set[str] = set()


def _cell(title: str, show: Callable[[RunView], str | float | None], run: RunView) -> Cell:
    try:
        value = show(run)
        return Cell(value=value[:_MOST_CHARACTERS] if isinstance(value, str) else value)
    except Exception as error:
        if title not in _logged:
            _logged.add(title)
            logger.warning("Column '%s' fails for %s", title, run.run_id, exc_info=error)
        return Cell(why=f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS])
