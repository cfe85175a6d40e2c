"""Lists whose texts are never cut, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.cli.console import open_console, printable, tell_json

_LEAST_ROOM = 40
_SHORT = 10


@dataclass(frozen=True)
class ListColumn:
    """A column of a list of records."""

    title: str
    cell: Callable[[Any], str | Text]
    """Returns its text for a record."""
    _: KW_ONLY
    is_figure: bool = False
    is_label: bool = False
    """Whether its cells need the title to be understood."""
    is_optional: bool = False
    """Whether it is omitted if no record has a value."""


class Listing:
    """A table if it fits; else each row as a text, below its first cell unless that is short.

    The last cell may be a long text: a table folds it if there is room for 40 characters.

    Args:
        titles: Titles of the columns.
        figures: Titles of columns with numbers.
        labels: Titles of other columns whose cells need the title to be understood.
    """

    def __init__(
        self, *titles: str, figures: Sequence[str] = (), labels: Sequence[str] = ()
    ) -> None:
        self._titles = titles
        self._figures = figures
        self._labels = {*figures, *labels}
        self._rows: list[tuple[Text, ...]] = []

    @classmethod
    def of(cls, records: Sequence[Any], *columns: ListColumn) -> Listing:
        """Return a list with a row for each record."""
        shown = [
            (column, cells)
            for column in columns
            if any(cells := [column.cell(record) for record in records]) or not column.is_optional
        ]
        listed = cls(
            *(column.title for column, _ in shown),
            figures=[column.title for column, _ in shown if column.is_figure],
            labels=[column.title for column, _ in shown if column.is_label],
        )
        for row in zip(*(cells for _, cells in shown), strict=True):
            listed.add(*row)
        return listed

    def add(self, *cells: str | Text) -> None:
        """Add a row."""
        self._rows.append(tuple(c if isinstance(c, Text) else Text(printable(c)) for c in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        *others, last = self._widths()
        least = sum(others) + min(last, _LEAST_ROOM)
        for gap in (2, 1):
            if least + gap * len(others) <= options.max_width:
                yield self._table(is_tight=gap == 1)
                return
        yield from self._blocks()

    def _widths(self) -> Iterator[int]:
        """Yield the terminal columns that each column of the table takes without folding."""
        for title, *cells in zip(self._titles, *self._rows, strict=True):
            lines = (line for cell in cells for line in cell.plain.splitlines())
            yield max(map(cell_len, (title, *lines)))

    def _table(self, *, is_tight: bool) -> Table:
        table = Table(box=None, pad_edge=False, collapse_padding=is_tight)
        for title in self._titles:
            is_last = title == self._titles[-1]
            table.add_column(
                title,
                justify="right" if title in self._figures else "left",
                no_wrap=not is_last,
                overflow="fold",
            )
        for row in self._rows:
            table.add_row(*row)
        return table

    def _blocks(self) -> Iterator[RenderableType]:
        is_short = all(row[0].cell_len <= _SHORT for row in self._rows)
        grid = Table.grid(padding=(0, 2, 0, 0))
        for row in self._rows:
            parts = [
                Text.assemble(f"{title} ", cell) if title in self._labels else cell
                for title, cell in zip(self._titles[1:], row[1:], strict=True)
                if cell.plain
            ]
            rest = Text(" · ").join(parts)
            rest.overflow = "fold"
            if is_short:
                grid.add_row(row[0], rest)
            else:
                yield Text.assemble(row[0], overflow="fold")
                yield Padding(rest, (0, 0, 0, 2), expand=False)
        if is_short:
            yield grid


def tell_list(
    records: Sequence[Any], columns: Sequence[ListColumn], none: str, *, as_json: bool
) -> None:
    """Print records as a list, or as JSON; `none` if there are none."""
    if as_json:
        tell_json(records)
    else:
        open_console().print(Listing.of(records, *columns) if records else none)
