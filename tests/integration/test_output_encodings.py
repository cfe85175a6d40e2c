"""Output that cannot hold every letter ends no command: its exit code is that of its work."""

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
