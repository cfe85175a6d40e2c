"""Output that cannot hold every letter, or that is read no more, ends no command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.states import StepState
from support.bad_input import HEADRACE, USAGE, Place, make_place

ENCODINGS = {
    "strict ascii": {"PYTHONIOENCODING": "ascii:strict"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "the locale C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = make_place(tmp_path_factory.mktemp("encodings") / "home")
    place.write_recipe("blobs", train={"ranks_per_node": 1})
    return place


@pytest.fixture(scope="module")
def run_id(place: Place) -> str:
    """A run that went on while its terminal took ASCII alone."""
    done = place.headrace("run", "blobs", "--site", "here", **ENCODINGS["strict ascii"])
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    record, _ = place.newest()
    assert record.state is StepState.SUCCEEDED
    return record.run_id


COMMANDS = {
    "status": (("status", "{run}"), 0),
    "plan": (("plan", "blobs", "--site", "here"), 0),
    "inspect": (("inspect", "{home}/blobs"), 0),
    "cost": (("cost",), 0),
    "help": (("run", "--help"), 0),
    "an unknown recipe": (("run", "größe"), USAGE),
    "an unknown run": (("status", "größe-→"), USAGE),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_as_its_work(place: Place, run_id: str, command: str, encoding: str):
    words, exit_code = COMMANDS[command]
    arguments = [word.format(run=run_id, home=place.home) for word in words]
    done = subprocess.run(
        [str(HEADRACE), *arguments],
        env={**place.environment(), **ENCODINGS[encoding]},
        capture_output=True,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout or done.stderr


def test_a_file_name_that_is_no_text_is_shown(place: Place, tmp_path: Path):
    folder = bytes(tmp_path) + b"/no-\xff-text"
    done = subprocess.run(
        [str(HEADRACE).encode(), b"inspect", folder],
        env=place.environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode in (1, USAGE)
    assert b"Traceback" not in done.stderr


LIMIT_S = 180


def first_line_of(place: Place, *arguments: str) -> tuple[str, int]:
    """As `headrace … 2>&1 | head -1`: the line, and the exit code of the command."""
    process = subprocess.Popen(
        [str(HEADRACE), *arguments],
        env=place.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    line = process.stdout.readline()
    process.stdout.close()
    return line, process.wait(LIMIT_S)


@pytest.mark.slow
def test_a_run_goes_on_to_its_end_without_a_reader(place: Place) -> None:
    line, code = first_line_of(place, "run", "blobs", "--site", "here")
    place.wait_for_quiet()
    record, attempts = place.newest()
    assert line == f"run: {record.run_id}\n"
    assert record.state is StepState.SUCCEEDED
    assert {row.state for row in attempts} == {StepState.SUCCEEDED}
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", [("logs",), ("logs", "--follow"), ("runs",), ("status",)])
def test_commands_that_only_show_end_in_silence(
    place: Place, run_id: str, command: tuple[str, ...]
) -> None:
    line, code = first_line_of(place, *command)
    assert line
    assert "Error" not in line
    assert code == 0
