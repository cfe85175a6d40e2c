"""`--detach`: a real child leaves its terminal; `resume --abandoned`; exit codes of views."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from headrace.cli import origins, runs
from headrace.errors import MetricsError
from headrace.execution.reap import end_run
from headrace.ledger.ledger import open_ledger
from headrace.runs.owners import owner_process
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.status.run_details import run_details
from headrace.steps.retry_policy import ERROR
from support.command_line import headrace, refusal
from support.runs import attempt_row_of, ended_owner, lease_on_disk, make_run
from support.shards import write_dataset
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("headrace_home")

LONG_S = 120.0
PROGRAM = """
import os, sys, time
from pathlib import Path
from headrace.cli import runs
from headrace.cli.app import main
from headrace.execution.reap import end_run
from headrace.states import StepState

def work(job, tick):
    print("at work in session", os.getsid(0), flush=True)
    while not Path("go").exists():
        time.sleep(0.05)
    end_run(job, StepState.SUCCEEDED, "a test")

def create(request):
    if Path("kill").exists():
        os.kill(os.getpid(), 9)
    return made(request)

made, runs.create_run, runs.execute = runs.create_run, create, work
main()
"""


def begun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, whose runs only wait for a file."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=LONG_S
    )


def test_a_detached_run_continues_in_a_session_of_its_own(tmp_path: Path) -> None:
    done = begun(tmp_path, "run", "digits", "--detach")
    (row,) = open_ledger().runs()
    assert (done.returncode, done.stdout) == (0, f"{row.run_id}\n")
    log = Path(row.folder) / "run.log"
    for line in (f"headrace attach {row.run_id}", f"headrace cancel {row.run_id}", f"log: {log}"):
        assert line in done.stderr
    driver = owner_process(row.owner)
    assert driver is not None
    wait_until(lambda: "at work" in log.read_text(), LONG_S, "its output in the log")
    assert f"in session {driver.pid}" in log.read_text()
    os.kill(driver.pid, signal.SIGHUP)
    (tmp_path / "go").touch()
    wait_until(lambda: not driver.is_alive, LONG_S, "its end")
    assert open_ledger().run(row.run_id).state is StepState.SUCCEEDED
    assert "succeeded" in log.read_text()


def test_what_ends_before_it_leaves_ends_the_command(tmp_path: Path) -> None:
    """With the same message and exit code as without `--detach`."""
    plain, refused = (begun(tmp_path, "run", "absent", *more) for more in ((), ("--detach",)))
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", plain.stderr)
    (tmp_path / "kill").touch()
    assert begun(tmp_path, "run", "digits", "--detach").returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("command", ["run", "rehearse", "sweep", "evaluate", "resume", "rerun"])
def test_each_command_leaves_before_its_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    before = make_run(owner=ended_owner())
    before.folder.checkpoints.mkdir()
    with ZipFile(before.folder.checkpoints / "final.ckpt", "w") as checkpoint:
        checkpoint.writestr("data", "x")
    packed = {"state": StepState.SUCCEEDED, "outputs": {"dataset": str(tmp_path)}}
    attempt_row_of(before, "pack", lease_on_disk(before), **packed)
    write_dataset(tmp_path, {"label": np.arange(10)}, splits={"train": 6, "test": 4})
    words = {
        "run": ["run", "digits"],
        "rehearse": ["run", "digits", "--rehearse"],
        "sweep": ["sweep", "digits", "seed=1,2"],
        "evaluate": ["evaluate", before.run_id],
        "resume": ["resume", before.run_id],
        "rerun": ["rerun", before.run_id],
    }[command]
    done: list[tuple[str, Run]] = []

    class Detaching:
        def __init__(self, *, wanted: bool) -> None:
            assert wanted

        def leave(self, job: Run, *, as_json: bool = False) -> None:
            done.append(("leave", job))

    def work(job: Run, _: object) -> None:
        done.append(("work", job))
        end_run(job, StepState.SUCCEEDED, "a test")

    monkeypatch.setattr(runs, "Detaching", Detaching)
    monkeypatch.setattr(origins, "Detaching", Detaching)
    monkeypatch.setattr(runs, "execute", work)
    ended = headrace(*words, "--detach")
    assert ended.exit_code == 0, ended.output
    assert done[0][0] == "leave"
    assert done[-1][0] == "work"
    assert done[0][1].run_id == done[-1][1].run_id  # of a rehearsal, too, the run is named


def test_each_abandoned_run_is_resumed_by_a_command_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[list[str]] = []

    def call(command: list[str]) -> int:
        calls.append(command[1:])
        return len(calls) % 2  # the first fails

    monkeypatch.setattr(subprocess, "call", call)
    assert "No run of yours" in headrace("resume", "--abandoned").stderr
    ended = make_run(owner=ended_owner())
    end_run(ended, StepState.FAILED, "a test")
    left = {make_run(owner=ended_owner()).run_id for _ in range(2)}
    make_run()  # its process is alive
    assert headrace("resume", "--abandoned").exit_code == 1
    assert {call[1] for call in calls} == left
    assert all(call[::2] == ["resume", "--detach"] for call in calls)
    shown = headrace("status").stdout
    assert all(run_id in shown for run_id in left)
    assert "headrace resume --abandoned" in shown
    assert "stands alone" in refusal("resume", "x", "--abandoned").what


@pytest.mark.parametrize("words", [("attach",), ("status", "--watch")])
def test_a_view_has_the_exit_code_of_its_run(words: tuple[str, ...]) -> None:
    """One rule: also abandoned runs have not succeeded; 3 is a model that is not good enough."""
    abandoned = make_run(owner=ended_owner())
    assert headrace(*words, abandoned.run_id).exit_code == 1
    missed = {"state": StepState.FAILED, "outputs": {ERROR: MetricsError.__name__}}
    cases = ((StepState.SUCCEEDED, {}, 0), (StepState.FAILED, {}, 1), (StepState.FAILED, missed, 3))
    for state, changes, exit_code in cases:
        run = make_run(owner="airflow:headrace_train:manual__1")  # a view needs no terminal of it
        assert not run_details(run.run_id).is_orphan
        if changes:
            attempt_row_of(run, "evaluate", lease_on_disk(run), **changes)
        end_run(run, state, "a test")
        shown = headrace(*words, run.run_id)
        assert shown.exit_code == exit_code
        assert "Ctrl-C" not in shown.output
