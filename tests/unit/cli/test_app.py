"""What the command itself tells, whichever of its commands was asked for."""

from __future__ import annotations

import errno
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from headrace.cli import app, commands
from headrace.cli.commands import build
from headrace.examples import digits
from support.command_line import every_command, headrace
from support.small_disk import read_only


def test_a_full_disk_is_told_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(digits, "_write", full)
    message = failed(monkeypatch, capsys, "example", "digits", str(tmp_path))
    assert "the disk or quota is full" in message
    assert "Free some space" in message


def failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the program writes to standard error before it ends with code 1."""
    for each in ("outlive_readers", "end_quickly"):  # they change this process
        monkeypatch.setattr(commands, each, lambda: None)
    monkeypatch.setattr(sys, "argv", ["headrace", *words])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("disk/x", "error: Read-only file system: 'HERE/disk/x'"),
        ("file/x", "error: Not a directory: 'HERE/file'"),
        ("x" * 256, f"error: File name too long: 'HERE/{'x' * 256}'"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_without_a_trace(
    place: str, what: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "file").touch()
    with read_only(tmp_path / "disk"):
        message = failed(monkeypatch, capsys, "example", "digits", str(tmp_path / place))
    assert message.startswith(what.replace("HERE", str(tmp_path)))


def test_a_loop_of_links_is_named_without_a_trace(tmp_path: Path, monkeypatch, capsys) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    monkeypatch.setenv("HEADRACE_HOME", str(loop / "home"))
    message = failed(monkeypatch, capsys, "runs")
    assert message.startswith(f"error: Too many levels of symbolic links: '{loop}/home/ledger.db'")


def test_a_fault_of_the_program_keeps_its_trace(monkeypatch, tmp_path) -> None:
    def wrong(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(digits, "_write", wrong)
    for each in ("outlive_readers", "end_quickly"):
        monkeypatch.setattr(commands, each, lambda: None)
    monkeypatch.setattr(sys, "argv", ["headrace", "example", "digits", str(tmp_path)])
    with pytest.raises(OSError, match="Invalid argument"):
        app.main()


def test_the_help_is_short_and_in_parts() -> None:
    """At 80 columns a line for each command."""
    told = headrace("--help", columns=80).stdout
    parts = re.findall(r"╭─ (\w+) ─", told)
    assert parts == ["Options", "Run", "Look", "Data", "Airflow", "Admin"]
    rows = [line for line in told[told.index("╭─ Run") :].splitlines() if line.startswith("│")]
    assert [row for row in rows if not re.match(r"│ [a-z-]+ +[A-Z].+\. +│$", row)] == []
    commands = get_command(build()).commands  # type: ignore[attr-defined]
    assert {row.split()[1] for row in rows} == set(commands)


def test_what_the_help_tells_of_a_command_is_how_its_own_begins() -> None:
    """They are told without being imported."""
    known = get_command(build()).commands  # type: ignore[attr-defined]
    for name, command in known.items():
        summary = inspect.cleandoc(command.help).split("\n\n")[0].replace("\n", " ")
        assert known.known()[name].summary == summary, name


WITHOUT_JSON = """
demo up down env password cancel logs shell schema lock package adopt
attach, mark, suite pause, suite resume, suite cancel, suite retry, suite prioritize, suite site
suite add, lease close, lease reap, lease adopt, lease shell, cloud destroy, example digits
ledger migrate, ledger export, ledger url, bench read, bench pack, bench stage, bench train
bench s3, bench suite, bench foresight, bench gpu, bench, site edit
"""


def test_every_command_that_lists_or_tells_has_json() -> None:
    """What has none does something, or prints lines of files."""
    without = {
        words
        for words, command in every_command()
        if words and "--json" not in {name for each in command.params for name in each.opts}
    }
    listed = WITHOUT_JSON.strip().splitlines()
    known = {*listed[0].split(), *(each.strip() for row in listed[1:] for each in row.split(","))}
    assert without - known == set()


def test_each_example_of_a_help_stands_on_a_line_of_its_own() -> None:
    """Lines that no blank line parts are one paragraph of Markdown."""
    wrong, found = [], 0
    for words, command in every_command():
        _, _, examples = (command.help or "").partition("Examples:\n")
        written = [line.strip() for line in examples.splitlines() if line.strip(" `tex")]
        found += len(written)
        lines = {line.strip() for line in headrace(*words.split(), "--help").stdout.splitlines()}
        wrong += [f"{words}: {line}" for line in written if line not in lines]
    assert wrong == []
    assert found > 50


_INTERRUPTED_BY = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
class Finder:
    def find_spec(name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
from headrace.cli.app import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "rich.markdown"])
def test_ctrl_c_while_it_is_imported_ends_it_quietly(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_BY, module, "--help"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
