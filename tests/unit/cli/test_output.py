"""What commands print: no text steers a terminal, none is markup; lost output ends no work."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rich.table import Table

import headrace.cli
from headrace.cli.console import open_console, printable
from headrace_bench.contest import missing_row
from headrace_bench.peers import PEERS
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
    (peer, *_) = PEERS
    monkeypatch.setattr(type(peer), "module", "surely_not_installed")
    row = missing_row(peer, peer.missing)
    console.print(_grid(BenchTable(title="read", rows=(row,), notes=())))
    assert "pip install 'headrace[bench]'" in console.file.getvalue()


def test_all_commands_print_to_this_console() -> None:
    """A `Console()` of their own would take brackets for markup."""
    made = {file.name for file in CLI.glob("*.py") if re.search(r"\bConsole\(", file.read_text())}
    assert made == {"console.py"}
    assert not [file.name for file in CLI.glob("*.py") if "[/" in file.read_text()]


TABLE = [
    ("\x1b[2J", "\\u001b[2J"),
    ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
    ("\x9b31m", "\\u009b31m"),
    ("done\rfailed", "done\\u000dfailed"),
    ("back\b\b\bspace", "back\\u0008\\u0008\\u0008space"),
    ("\x00", "\\u0000"),
    ("\x7f", "\\u007f"),
    ("\u202egnp.exe", "\\u202egnp.exe"),
    ("\u2066left\u2069", "\\u2066left\\u2069"),
    ("\u200f\u061c", "\\u200f\\u061c"),
    ("\u2028", "\\u2028"),
    ("half \ud83d", "half \\ud83d"),
    ("\udcff", "\\udcff"),
    ("tab\tline\ncsv\r\n", "tab\tline\ncsv\r\n"),
    ("é 日本 🎉 \u200d", "é 日本 🎉 \u200d"),
]

SHOWS = """
import json, sys, typer
from rich.table import Table
from headrace.cli.console import open_console, outlive_readers
from headrace.cli.listing import Listing
outlive_readers()
open_console().print("styled", style="bold red")
for text in json.loads(sys.argv[1]):
    typer.echo(text)
    print(text, file=sys.stderr, flush=True)
    listed = Listing("a", "b")
    listed.add(text, text)
    open_console().print(listed, text)
    open_console().print(text, soft_wrap=True)
"""


@pytest.mark.parametrize(("text", "shown"), TABLE)
def test_what_steers_a_terminal_is_written_as_an_escape(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


def test_no_way_of_printing_lets_it_through():
    texts = [text for text, _ in TABLE[:13]]
    hers, ours = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    command = (sys.executable, "-c", SHOWS, json.dumps(texts))
    with subprocess.Popen(command, stdout=ours, stderr=ours, env=environment) as child:
        os.close(ours)
        found = bytearray()
        with suppress(OSError):  # how a terminal ends
            while part := os.read(hers, 65536):
                found += part
        assert child.wait() == 0, found
    os.close(hers)
    assert b"\x1b[1;31mstyled\x1b[0m" in found
    rest = re.sub(r"\x1b\[[\d;]*m", "", found.decode())  # styles
    assert printable(rest) == rest
    assert {
        text: rest.count(printable(text)) for text in texts if rest.count(printable(text)) < 6
    } == {}


ENDLESS = """
import os, sys
from headrace.cli.console import outlive_readers, output_is_gone
outlive_readers()
stream = getattr(sys, sys.argv[1])
for number in range(10**9):
    print("line", number, file=stream, flush=True)
    if stream.buffer.raw.is_gone:
        break
print("more", file=stream)
sys.exit(30 + output_is_gone())
"""


HUNG_UP = """
import sys
from headrace.cli.console import open_console, outlive_readers, output_is_gone
outlive_readers()
console = open_console()
assert not output_is_gone()
print("up", flush=True)
sys.stdin.read(1)
assert output_is_gone()
console.print("more")
print("errors", file=sys.stderr, flush=True)
print("and more", flush=True)
sys.exit(30 + output_is_gone())
"""


@pytest.mark.parametrize(("stream", "code"), [("stdout", 31), ("stderr", 30)])
def test_a_closed_pipe_is_no_error_and_is_known(stream: str, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, stream],
        **{stream: subprocess.PIPE},  # type: ignore[call-overload]
        text=True,
    )
    pipe = getattr(process, stream)
    assert pipe.readline() == "line 0\n"
    pipe.close()
    assert process.wait(60) == code


def test_a_closed_terminal_is_no_error_and_is_known_before_anything_is_written() -> None:
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", HUNG_UP], stdin=subprocess.PIPE, stdout=its, stderr=its
    ) as process:
        os.close(its)
        assert os.read(ours, 2) == b"up"
        os.close(ours)
        process.communicate(b".")
    assert process.returncode == 31


def test_encoding_and_what_was_printed_before_are_kept() -> None:
    code = (
        "import sys; print('first'); from headrace.cli.console import outlive_readers\n"
        "before = sys.stdout.encoding; outlive_readers()\n"
        "print('second é', sys.stdout.encoding == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.decode() == "first\nsecond é True\n"


@pytest.mark.parametrize(
    ("output", "reason"),
    [("/dev/full", "No space left on device"), ("&-", "Bad file descriptor")],
)
@pytest.mark.parametrize("words", ["--version", "--help", "runs", "runs --json", "schema site"])
def test_output_that_cannot_be_written_is_one_line_and_an_error(
    words: str, output: str, reason: str, tmp_path: Path
) -> None:
    code = "from headrace.cli.app import main; main()"
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -c "$1" {words} >{output}', sys.executable, code],
        env={**os.environ, "HEADRACE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == f"error: standard output cannot be written: {reason}\n"
    assert done.returncode == 1


def test_output_that_cannot_be_written_ends_no_work() -> None:
    code = (
        "import os, sys; from headrace.cli.console import outlive_readers, output_problem\n"
        "outlive_readers(); print('x' * 10**6); print('more', flush=True)\n"
        "print(output_problem().strerror, file=sys.stderr)"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"No space left on device\n")
