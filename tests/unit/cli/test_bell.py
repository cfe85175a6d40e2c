"""A terminal is told when a command that took long has ended."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli import runs
from headrace.cli.bell import Bell
from headrace.runs.lifecycle import finish_run
from headrace.states import StepState
from support.runs import make_run


def rung(console: Console) -> str:
    Bell().ring("digits-1 failed;\x1b]0;x\a", console)
    return console.file.getvalue()


@pytest.mark.parametrize(("after", "rings"), [("0", True), ("3600", False), ("", False)])
def test_it_rings_on_terminals_after_the_time_that_is_set(after: str, rings: bool, monkeypatch):
    monkeypatch.setenv("HEADRACE_NOTIFY", after)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    told = rung(Console(file=io.StringIO(), force_terminal=True))
    ends = "\x1b\\"
    words = "digits-1 failed,]0,x"
    assert told == (
        f"\a\x1b]9;{words}{ends}\x1b]777;notify;headrace;{words}{ends}" if rings else ""
    )
    assert rung(Console(file=io.StringIO(), force_terminal=False)) == ""


def test_the_desktop_is_told_by_its_own_program(monkeypatch, tmp_path: Path):
    program = tmp_path / "notify-send"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$(dirname "$0")/told"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("HEADRACE_NOTIFY", "0")
    rung(Console(file=io.StringIO(), force_terminal=True))
    assert (tmp_path / "told").read_text().splitlines()[1:] == ["headrace", "digits-1 failed,]0,x"]


def test_what_is_no_time_is_told(monkeypatch):
    monkeypatch.setenv("HEADRACE_NOTIFY", "soon")
    told = rung(Console(file=io.StringIO(), force_terminal=True, color_system=None))
    assert told == "HEADRACE_NOTIFY is 'soon'. Set it to seconds, as in 60, or unset it.\n"


def test_the_end_of_a_run_rings(headrace_home: Path, monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setenv("HEADRACE_NOTIFY", "0")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr(runs, "open_console", lambda **_: console)
    monkeypatch.setattr(runs, "execute", lambda job, tick: finish_run(job, StepState.SUCCEEDED))
    run = make_run()
    runs.carry_out(run, as_json=False)
    assert f"\x1b]9;{run.run_id} succeeded\x1b\\" in console.file.getvalue()
