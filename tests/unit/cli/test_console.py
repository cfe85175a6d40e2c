"""What commands print is shown letter by letter: `[x]` in it is no markup."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.table import Table

import headrace.cli
from headrace.cli.console import open_console
from headrace_bench.peers.peer import MODULES, load, missing
from headrace_bench.read import missing_row
from headrace_bench.records import BenchTable
from headrace_bench.report import _grid

CLI = Path(headrace.cli.__file__).parent
TEXT = "pip install headrace[bench] [/x] [red]"


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch):
    made = open_console()
    made.file = io.StringIO()
    return made


def test_brackets_are_shown(console) -> None:
    console.print(TEXT)
    table = Table("a", title=TEXT)
    table.add_row(TEXT)
    console.print(table)
    assert console.file.getvalue().count(TEXT) == 3


def test_a_library_that_is_not_installed_is_named_with_its_extra(console, monkeypatch) -> None:
    peer = load(MODULES[2])
    monkeypatch.setattr(type(peer), "module", "surely_not_installed")
    row = missing_row(peer, missing(peer))
    console.print(_grid(BenchTable(title="read", rows=(row,), notes=())))
    assert "pip install 'headrace[bench]'" in console.file.getvalue()


def test_all_commands_print_to_this_console() -> None:
    """A `Console()` of their own would take brackets for markup."""
    made = {file.name for file in CLI.glob("*.py") if re.search(r"\bConsole\(", file.read_text())}
    assert made == {"console.py"}
    assert not [file.name for file in CLI.glob("*.py") if "[/" in file.read_text()]
