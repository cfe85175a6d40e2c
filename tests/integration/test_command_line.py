"""The command line as its reader meets it: help, messages without traces, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEADRACE = Path(sys.executable).parent / "headrace"

USAGE = 2
"""Exit code when the input, not the machine, is wrong."""


def headrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as installed; wide, so that no message is broken into lines."""
    return subprocess.run(
        [str(HEADRACE), *arguments],
        env={**os.environ, "COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def commands(*group: str) -> list[str]:
    """Names of the commands of a group, from its help."""
    code = (
        "import json, sys, typer; from headrace.cli.app import build\n"
        "command = typer.main.get_command(build())\n"
        "for name in sys.argv[1:]: command = command.commands[name]\n"
        "print(json.dumps(sorted(getattr(command, 'commands', {}))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *group], capture_output=True, text=True, check=True
    )
    return list(json.loads(done.stdout))


def subcommands(name: str) -> list[tuple[str, ...]]:
    """What follows a command's name: nothing, or each command of the group it is."""
    return [(each,) for each in commands(name)] or [()]


def test_help_lists_every_command_of_the_readme():
    done = headrace("--help")
    assert done.returncode == 0, done.stderr
    for name in ("run", "status", "logs", "runs", "demo", "up", "down", "lease", "inspect"):
        assert f" {name} " in done.stdout
    assert set(commands("lease")) == {"list", "show", "close", "reap", "shell"}


def test_every_command_explains_itself_with_an_example():
    paths = [(name, *rest) for name in commands() for rest in subcommands(name)]
    without = [path for path in paths if not has_example(*path)]
    assert len(paths) > 10
    assert without == []


def has_example(*path: str) -> bool:
    """Whether the help of a command shows how it is called."""
    lines = headrace(*path, "--help").stdout.splitlines()
    call = f"headrace {' '.join(path)}"
    return any(call in line and "Usage" not in line for line in lines)


def test_without_arguments_the_help_is_shown():
    done = headrace()
    assert done.returncode == USAGE
    assert "Usage" in done.stdout + done.stderr


def test_version():
    assert headrace("--version").stdout.strip() == "0.1.0"


def test_the_command_line_loads_no_heavy_library():
    code = (
        "import sys; from headrace.cli.app import build; build()\n"
        "print(sorted({'torch', 'dask', 'distributed', 'h5py', 'lightning', 'airflow', 'sklearn',"
        " 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["run", "digts"], ["There is no recipe 'digts'", "Did you mean 'digits'?"]),
        (["run", "no/such.yaml"], ["recipe file 'no/such.yaml' does not exist"]),
        (
            ["run", "digits", "--site", "labtop"],
            ["There is no site 'labtop'", "Did you mean 'laptop'?"],
        ),
        (
            ["run", "digits", "trainer.max_epoch=3"],
            ["unknown key 'trainer.max_epoch'", "Did you mean 'max_epochs'?"],
        ),
        (
            ["run", "digits", "trainer.max_epochs=many"],
            ["trainer.max_epochs", "valid integer", "'many'"],
        ),
        (["run", "digits", "trainer.max_epochs"], ["not of the form key=value"]),
        (["run", "digits", "train.role=tpu"], ["role 'tpu'", "Valid: cpu, gpu."]),
        (["status"], ["There are no runs yet", "headrace run digits"]),
        (["status", "digits-1"], ["digits-1"]),
        (["logs", "digits-1"], ["digits-1"]),
        (["cancel", "digits-1"], ["digits-1"]),
    ],
)
def test_a_users_mistake_is_told_in_words(arguments, messages, headrace_home):
    done = headrace(*arguments)
    assert done.returncode == USAGE, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    for message in messages:
        assert message in done.stderr
    assert not list(headrace_home.glob("runs/*")), "a refused request left a run behind"


def test_an_unknown_command_or_option_is_a_usage_error(headrace_home):
    assert headrace("rnu").returncode == USAGE
    assert headrace("run", "digits", "--sit", "laptop").returncode == USAGE


def test_runs_of_an_empty_home_are_none(headrace_home):
    done = headrace("runs", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
