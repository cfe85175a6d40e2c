"""What the command itself tells, whichever of its commands was asked for."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from headrace.cli import app, commands
from headrace.cli.commands import build
from headrace.examples import digits
from support.command_line import headrace


def test_a_full_disk_is_told_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(digits, "_write", full)
    for each in ("outlive_readers", "end_quickly"):  # they change this process
        monkeypatch.setattr(commands, each, lambda: None)
    monkeypatch.setattr(sys, "argv", ["headrace", "example", "digits", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "the disk or quota is full" in told
    assert "Free some space" in told


def test_the_help_is_short_and_in_parts() -> None:
    """At 80 columns a line for each command."""
    told = headrace("--help", columns=80).stdout
    parts = re.findall(r"╭─ (\w+) ─", told)
    assert parts == ["Options", "Run", "Look", "Data", "Airflow", "Admin"]
    rows = [line for line in told[told.index("╭─ Run") :].splitlines() if line.startswith("│")]
    assert [row for row in rows if not re.match(r"│ [a-z-]+ +[A-Z].+\. +│$", row)] == []
    commands = get_command(build()).commands  # type: ignore[attr-defined]
    assert {row.split()[1] for row in rows} == set(commands)


_INTERRUPTED_BY = """
import os, signal, sys
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
