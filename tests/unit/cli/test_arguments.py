"""What a shell completes of the ids and names that commands take, asking for nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import arguments
from support.command_line import every_command, headrace
from support.runs import make_run
from support.suite_journal import make_suite

COMPLETED = {"recipe", "run", "run_id", "suite", "site", "first", "second"}
"""Names of parameters that are an id or a name of something that is known."""


@pytest.fixture(autouse=True)
def _home(headrace_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(headrace_home)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")  # which completion sets for its process


def test_recipes_and_sites_are_those_that_can_be_named(headrace_home: Path) -> None:
    folder = headrace_home / "recipes"
    folder.mkdir()
    (folder / "diggings.yaml").touch()
    assert arguments.recipes("dig") == ["diggings", "digits"]
    assert arguments.sites("lap") == ["laptop"]


def test_runs_and_suites_are_completed_the_newest_first() -> None:
    run, suite = make_run().run_id, make_suite().run_id
    assert arguments.runs("digits-") == [suite, run]
    assert arguments.runs(run) == [run]
    assert arguments.suites("") == [suite]
    assert arguments.suites("other") == []


def test_without_a_ledger_nothing_is_told_or_made(headrace_home: Path) -> None:
    words = {"COMP_WORDS": "headrace status ", "COMP_CWORD": "2"}
    asked = {**os.environ, **words, "_HEADRACE_COMPLETE": "complete_bash"}
    command = Path(sys.executable).parent / "headrace"
    done = subprocess.run([command], env=asked, capture_output=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (b"", b"")
    assert not (headrace_home / "ledger.db").exists()


@pytest.mark.parametrize("content", [b"", b"no database"])
def test_of_a_ledger_that_cannot_be_read_nothing_is_told(headrace_home: Path, content: bytes):
    file = headrace_home / "ledger.db"
    file.write_bytes(content)
    assert arguments.runs("") == []
    assert file.read_bytes() == content


def test_every_command_completes_what_it_takes() -> None:
    without = [
        f"{words}: {each.name}"
        for words, command in every_command()
        for each in command.params
        if each.name in COMPLETED and each._custom_shell_complete is None
    ]
    assert without == []


def test_only_commands_that_take_a_trial_name_its_number() -> None:
    assert "SUITE:NUMBER" in headrace("status", "--help").output
    assert "SUITE:NUMBER" not in headrace("resume", "--help").output
