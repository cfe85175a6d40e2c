"""The command line as its reader meets it: help, messages without traces, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli.commands import build
from headrace.runs.lifecycle import finish_run
from headrace.states import FailureClass, StepState
from support.command_line import headrace, refusal
from support.runs import make_run

HEADRACE = Path(sys.executable).parent / "headrace"

USAGE = 2
"""Exit code when the input, not the machine, is wrong."""


def installed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as installed; wide, so that no message is broken into lines."""
    return subprocess.run(
        [str(HEADRACE), *arguments],
        env={**os.environ, "COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def commands(group: Any = None, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """All commands by their path, as in `("lease", "list")`."""
    group = group or typer.main.get_command(build())
    found = {}
    for name, command in group.commands.items():
        if command.hidden:  # the old name of another one
            continue
        inner = getattr(command, "commands", None)
        found |= commands(command, (*path, name)) if inner else {(*path, name): command}
    return found


def test_help_lists_every_command_of_the_readme():
    done = headrace("--help")
    assert done.exit_code == 0, done.output
    for name in ("run", "status", "logs", "runs", "demo", "up", "down", "lease", "inspect"):
        assert f" {name} " in done.stdout
    lease = {path[1] for path in commands() if path[0] == "lease"}
    assert lease == {"list", "show", "close", "reap", "shell", "adopt"}


def test_every_command_that_takes_something_shows_how_it_is_called():
    taking = {path: command for path, command in commands().items() if command.params}
    without = [path for path, command in taking.items() if not shows_call(path, command.help)]
    assert len(taking) > 10
    assert without == []


def shows_call(path: tuple[str, ...], text: str | None) -> bool:
    """Whether a command's help has an example of it."""
    return f"headrace {' '.join(path)}" in (text or "")


def test_without_arguments_the_help_is_shown():
    done = headrace()
    assert done.exit_code == USAGE
    assert "Usage" in done.output


def test_version():
    assert installed("--version").stdout.strip() == "0.1.0"


def test_garbage_is_looked_for_once_all_is_imported(headrace_home: Path):
    code = (
        "import atexit, gc, sys; from headrace.cli.app import main\n"
        "sys.argv = ['headrace', 'runs']\n"
        "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000))\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "True True", done.stderr


_HEAVY = {
    *("torch", "dask", "distributed", "h5py", "lightning", "airflow", "sklearn", "matplotlib"),
    *("numpy", "PIL", "pandas", "scipy", "pyarrow"),
}
_WITHOUT_LEDGER = {*_HEAVY, "sqlalchemy", "omegaconf", "headrace.recipe.recipe"}
_MAKING = {"headrace.runs.lifecycle", "headrace.runs.resolve", "headrace.recipe.schema"}
"""What makes a run, and checks a recipe."""
_LOOKING = {
    *(*_HEAVY, *_MAKING, "jinja2", "sqlalchemy.dialects.postgresql", "headrace.suites.points"),
    *("headrace.objects.store", "headrace.execution.reap", "headrace_foresight.prediction"),
}
"""What commands that tell how things stand do without, from a ledger in a file."""
_WITHOUT_RECIPES = {*_LOOKING, "headrace.recipe.recipe"}
_OF_ROWS = {*_WITHOUT_RECIPES, "headrace.clusters.lease_machines", "headrace_foresight.ownership"}
_LISTING = {*_WITHOUT_RECIPES, "omegaconf", "yaml", "headrace.execution.execute"}


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        (("--version",), {*_WITHOUT_LEDGER, "typer", "pydantic", "rich"}),
        (("--help",), _WITHOUT_LEDGER),
        (("runs",), {*_LISTING, "headrace.clusters.lease_records", "headrace.runs.usage"}),
        (("status",), {*_LOOKING, "omegaconf", "yaml"}),
        (("suite", "show"), _LISTING),
        *(((name,), _OF_ROWS) for name in ("cost", "audit")),
        (("lease", "list"), _WITHOUT_RECIPES),
        (("cache", "list"), _WITHOUT_RECIPES - {"headrace.objects.store"}),
        (("site", "list"), _HEAVY),
        (
            ("plan", "digits"),
            {*_HEAVY - {"numpy", "pyarrow"}, "headrace.cli.watching", "headrace.status.suite"},
        ),
    ],
)
def test_a_command_loads_only_what_it_needs(
    arguments: tuple[str, ...], left_out: set[str], headrace_home: Path
):
    make_run()  # so that the ledger is there, and something is told
    finish_run(make_run(), StepState.SUCCEEDED)  # the newest one
    code = (
        "import atexit, sys; from headrace.cli.app import main\n"
        f"sys.argv = ['headrace', *{arguments!r}]\n"
        f"atexit.register(lambda: print('loaded', sorted({left_out!r} & set(sys.modules))))\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "loaded []", done.stderr


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["status"], ["There are no runs yet", "headrace run digits"]),
        (["status", "digits-1"], ["digits-1"]),
        (["logs", "digits-1"], ["digits-1"]),
        (["cancel", "digits-1"], ["digits-1"]),
    ],
)
def test_a_users_mistake_is_told_in_words(arguments, messages, headrace_home):
    """Those of recipes and sites are in `test_refused_requests.py`."""
    told = refusal(*arguments)
    assert told.failure_class is FailureClass.USER_ERROR
    for message in messages:
        assert message in str(told)


def test_a_mistake_is_shown_without_a_trace(headrace_home):
    """That is so of every error that headrace raises on purpose."""
    done = installed("run", "digts")
    assert done.returncode == USAGE, done.stdout + done.stderr
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first == "error: There is no recipe 'digts'"
    assert "Did you mean 'digits'?" in second


def test_an_unknown_command_or_option_is_a_usage_error(headrace_home):
    assert headrace("rnu").exit_code == USAGE
    assert headrace("run", "digits", "--sit", "laptop").exit_code == USAGE


def test_runs_of_an_empty_home_are_none(headrace_home):
    done = headrace("runs", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == []
