"""Shared by all commands: the console, options, formats of numbers, signals and output errors."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import rich.console
import typer
from pydantic import BaseModel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from headrace.cli import arguments
from headrace.record import as_json_values

SiteOption = Annotated[
    str, typer.Option(help="Name of a site, or a YAML file.", autocompletion=arguments.sites)
]
SitesOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of a site, or a YAML file; several with commas between them share the trials. "
        "Default: suite.sites of the recipe, else laptop.",
        autocompletion=arguments.sites,
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_PIPE_WIDTH = 200
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)|"
    "[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, characters that change the direction of text, and lone surrogates."""


def printable(text: str) -> str:
    """Return a text without terminal control: such characters become JSON escapes."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Console(rich.console.Console):
    """Shows texts as `printable` and literally: `[x]` is not markup, numbers have no colour."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text before it is laid out."""
        return super().render_str(printable(text), **options)

    def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
        """Yield the output, which may come from a `Text`."""
        for each in super().render(*arguments, **options):
            yield each if each.control else each._replace(text=printable(each.text))


def open_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console as wide as the terminal; into files and pipes, wide enough for ids."""
    console = Console(stderr=stderr, quiet=quiet)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def tell(line: str) -> None:
    """Print a line for people: on a terminal wrapped between words, elsewhere unwrapped."""
    console = open_console()
    console.print(line, soft_wrap=not console.is_terminal)


def tell_json(content: object) -> None:
    """Print records, rows, or mappings and lists of these, for programs."""
    typer.echo(as_json_text(content))


def as_json_text(content: object) -> str:
    """Return records, rows, or mappings and lists of these, as JSON."""

    def plain(value: Any) -> object:
        if isinstance(value, Path):
            return str(value)
        return as_json_values(value) if isinstance(value, BaseModel) else asdict(value)

    return json.dumps(content, indent=1, default=plain)


def as_csv_text(rows: Sequence[dict[str, Any]], first: str) -> str:
    """Return rows as CSV with a header; without any, its first column."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [first], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def plain_table(
    *words: str, figures: Sequence[str] = (), rows: Iterable[Iterable[str | Text]] = ()
) -> Table:
    """Return a table without lines, with columns of words, which are folded, then of figures."""
    table = Table(box=None, pad_edge=False)
    for title in words:
        table.add_column(title, overflow="fold")
    for title in figures:
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def facts(named: Iterable[tuple[str, str | Text | None]]) -> Table:
    """Return values that are not empty, with their names, one below the other, folded if long."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in named:
        if value:
            cell = Text(value) if isinstance(value, str) else value
            table.add_row(Text(name, style="bold"), cell)
    return table


def duration(seconds: float | None) -> str:
    """Return a duration for people: `4.2 s`, `3:05`, `1:02:03`; empty if unknown.

    A negative one (the clock was set back) counts as zero.
    """
    if seconds is None:
        return ""
    seconds = max(seconds, 0.0)
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def moment(at: float) -> str:
    """Return a time, seconds since the epoch, for people: `2026-01-02 03:04:05`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def hundredths(value: float) -> str:
    """Return hours or money for people: `1,234.50`; small values with more digits: `0.0042`."""
    return f"{value:,.4f}" if 0 < value < 0.1 else f"{value:,.2f}"


def amount(value: float | None) -> str:
    """Return a count for people: `950`, `1.8k`, `12M`; empty if unknown."""
    if value is None:
        return ""
    shown = float(f"{value:.3g}")
    for limit, scale, sign in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(shown) >= limit:
            return f"{shown / scale:g}{sign}"
    return f"{shown:g}" if abs(shown) < 1000 else f"{value:.0f}"


@contextmanager
def with_handler(handler: Callable[..., object], *signals: signal.Signals) -> Iterator[None]:
    """Handle signals by `handler` while the block runs."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def tidy_end() -> AbstractContextManager[None]:
    """Let SIGTERM interrupt as Ctrl-C does, so that files and processes are cleaned up."""
    return with_handler(signal.default_int_handler, signal.SIGTERM)


def outlive_terminal() -> None:
    """Keep this process running when its terminal is closed, as `nohup` does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class _Outlet(io.FileIO):
    """A file descriptor that drops all further output after a write has failed."""

    is_gone = False
    """Whether a write has failed: the pipe or terminal is closed, or the disk is full."""
    problem: OSError | None = None
    """The error; None if a reader closed the pipe."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            is_device = stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
            if error.errno != (errno.EIO if is_device else errno.EPIPE):
                self.problem = error
            self.is_gone = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)  # type: ignore[arg-type]


class _Screen(io.TextIOWrapper):
    """A text stream that shows texts as `printable`; consoles bypass it to keep their styles.

    rich looks for its attribute: https://github.com/Textualize/rich, `rich.file_proxy`.
    """

    @property
    def rich_proxied_file(self) -> _Styled:
        return _Styled(self)

    def write(self, text: str) -> int:
        return super().write(printable(text))


class _Styled:
    """A `_Screen` that writes texts unchanged."""

    def __init__(self, screen: _Screen) -> None:
        self._screen = screen

    def write(self, text: str) -> int:
        """Write a text unchanged."""
        return io.TextIOWrapper.write(self._screen, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._screen, name)


def outlive_readers() -> None:
    """Keep commands running when output fails, and keep control characters from the terminal."""
    if sys.stdout is None:  # closed by the caller: writing to this one fails
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), closefd=False)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            reopened = _Screen(
                io.BufferedWriter(_Outlet(stream.fileno(), "w", closefd=False)),
                encoding=stream.encoding,
                errors="backslashreplace",  # characters that a terminal lacks end no command
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, reopened)


def output_is_gone() -> bool:
    """Whether standard output fails: its reader has left, or it cannot be written."""
    raw = _outlet()
    if raw is None:
        return False
    poll = select.poll()
    poll.register(raw, 0)  # poll always reports a closed end
    return raw.is_gone or bool(poll.poll(0))


def output_problem() -> OSError | None:
    """Write pending output; return the error of standard output, unless its reader has left."""
    sys.stdout.flush()
    raw = _outlet()
    return None if raw is None else raw.problem


def _outlet() -> _Outlet | None:
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Outlet) else None
