"""Who reads the output of a command may leave: `headrace run … | head -1` runs to its end."""

from __future__ import annotations

import subprocess

import pytest

from headrace.states import StepState
from support.bad_input import HEADRACE, Place, make_place

pytestmark = pytest.mark.slow

LIMIT_S = 180


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("closed-pipe"))


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


def test_a_run_goes_on_to_its_end_without_a_reader(place: Place) -> None:
    line, code = first_line_of(place, "run", "blobs", "--site", "here")
    place.wait_for_quiet()
    record, attempts = place.newest()
    assert line == f"run: {record.run_id}\n"
    assert record.state is StepState.SUCCEEDED
    assert {row.state for row in attempts} == {StepState.SUCCEEDED}
    assert code == 0


@pytest.mark.parametrize("command", [("logs",), ("logs", "--follow"), ("runs",), ("status",)])
def test_commands_that_only_show_end_in_silence(place: Place, command: tuple[str, ...]) -> None:
    if not place.has_run():
        place.run("blobs", "trainer.max_epochs=1")
    line, code = first_line_of(place, *command)
    assert line
    assert "Error" not in line
    assert code == 0
