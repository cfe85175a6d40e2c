"""What the chaos campaign compares, looks for and draws."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.campaign.checks import Result, differences, left_over, wrong
from chaos.campaign.processes import Processes, describe, role_of, shared_memory
from chaos.campaign.trials import TARGETS, draw
from headrace.files.layout import SiteFolder
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import RunRecord
from headrace.states import StepState
from support.waiting import wait_until

SERVER = "python -u -m headrace.processes.forking 30 "
RESULT = Result(
    dataset="f",
    weights="w",
    steps=10,
    train_metrics={"loss": 0.5},
    test_metrics={"accuracy": 0.9},
    samples=(7, 7, 7),
    files=frozenset({"runs/RUN/report/report.html", "tier/x"}),
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"files": RESULT.files | {"runs/RUN/x"}}, []),
        ({"files": RESULT.files - {"tier/x"}}, []),
        ({"files": frozenset()}, ["file runs/RUN/report/report.html is missing"]),
        ({"weights": "v"}, ["weights: v, not w"]),
        ({"samples": (7, 8, 7)}, ["samples: (7, 8, 7), not (7, 7, 7)"]),
        (
            {"test_metrics": {"accuracy": 0.8}, "steps": 9},
            ["steps: 9, not 10", "test_metrics: {'accuracy': 0.8}, not {'accuracy': 0.9}"],
        ),
    ],
)
def test_differences_of_results(changes: dict[str, object], told: list[str]):
    assert list(differences(RESULT.model_copy(update=changes), RESULT)) == told


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with an empty ledger and no lease."""
    Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    SiteFolder(tmp_path).leases.mkdir()
    return tmp_path


def run_of(home: Path, state: StepState = StepState.SUCCEEDED) -> RunRecord:
    return RunRecord(
        run_id="run-1",
        key="k",
        recipe_name="r",
        site_name="s",
        recipe_fingerprint="f",
        folder=str(home / "runs" / "run-1"),
        state=state,
        created_at=time.time(),
    )


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_run_that_did_not_succeed_is_wrong(home: Path):
    assert list(wrong(home, None, RESULT)) == ["the run is not in the ledger"]
    assert list(wrong(home, run_of(home, StepState.FAILED), RESULT)) == ["the run is failed"]


def test_files_that_the_reference_has_are_not_left_over(home: Path):
    touch(home / "runs" / "run-1" / "report" / "report.html")
    assert list(left_over(home, run_of(home), RESULT, ())) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tier/datasets/.half", "file tier/datasets/.half"),
        ("runs/run-1/report/.x", "file runs/RUN/report/.x"),
        ("leases/l/.job.json.0123456789ab", "temporary leases/l/.job.json.0123456789ab"),
        ("leases/l/steps/.0123456789abcdef0123456789abcdef", "temporary leases/l/steps/.0123"),
        ("leases/l/host.json", "disk: lease l is not closed, or not in the ledger"),
    ],
)
def test_what_else_is_there_is_left_over(home: Path, name: str, told: str):
    touch(home / name)
    found = list(left_over(home, run_of(home), RESULT, ()))
    assert [each for each in found if each.startswith(told)]


def test_shared_memory_that_is_still_there_is_left_over(home: Path):
    there = home / "sem.mp-1"
    there.touch()
    found = list(left_over(home, run_of(home), RESULT, [there, home / "sem.mp-2"]))
    assert found == [f"memory {there}"]


@pytest.mark.parametrize(
    ("name", "command", "role"),
    [
        ("python", "python -c from headrace.cli.app import main", "command"),
        ("python", "python -m headrace.clusters.host /l/1 --detach", "host"),
        ("guard", "python -m headrace.clusters.host /l/1", "guard"),
        ("driver 1", f"{SERVER} headrace.steps.run", "driver"),
        ("run", f"{SERVER} headrace.steps.run", "server"),
        ("python", f"{SERVER} headrace.steps.model_process", "server"),
        ("rank 1", f"{SERVER} headrace.steps.model_process", "rank"),
        ("predictor", f"{SERVER} headrace.steps.model_process", "predictor"),
        ("local_cluster", f"{SERVER} headrace.clusters.local_cluster", "server"),
        ("worker node-0", f"{SERVER} headrace.clusters.local_cluster", "worker"),
        ("dask worker [tc", "dask worker [tcp://127.0.0.1:1]", "worker"),
        ("python", "python -c from multiprocessing.spawn import spawn_main", "worker"),
        ("python", "python -c from multiprocessing.resource_tracker import main", "tracker"),
        ("git", "git rev-parse HEAD", "other"),
    ],
)
def test_roles(name: str, command: str, role: str):
    assert role_of(name, command) == role


@contextmanager
def sleeper(home: Path, comment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with this home of headrace, and these words in its command line."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(600)  # {comment}"],
        env={**os.environ, "HEADRACE_HOME": str(home)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_processes_of_this_home_alone_are_found_and_ended(tmp_path: Path):
    processes = Processes(tmp_path / "mine")
    with (
        sleeper(tmp_path / "mine", "headrace.clusters.host") as mine,
        sleeper(tmp_path / "other", "headrace.clusters.host") as other,
    ):
        found = wait_until(processes.living, 30, "the process to be found")
        assert [(each.pid, role) for each, role in found.items()] == [(mine.pid, "host")]
        assert describe(found)[0].startswith(f"host {mine.pid} (")
        processes.kill()
        assert mine.wait(30) == -9
        assert other.poll() is None
        assert not processes.living()


def test_trackers_end_last_so_that_no_semaphore_stays(tmp_path: Path):
    code = (
        "import multiprocessing, time; s = multiprocessing.get_context('spawn').Semaphore(); "
        "print(flush=True); time.sleep(600)"
    )
    processes = Processes(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "HEADRACE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        memory = shared_memory(processes.living())
        assert memory
        processes.kill()
    assert [path for path in memory if path.exists()] == []


LOST_AFTER_S = 8.0


def test_trials_disturb_every_process_of_every_phase_and_are_drawn_again_from_their_seed():
    trials = [draw(1, number, LOST_AFTER_S) for number in range(200)]
    assert trials == [draw(1, number, LOST_AFTER_S) for number in range(200)]
    assert {(trial.phase, trial.role) for trial in trials} == set(TARGETS)
    halts = [trial.halt_s for trial in trials if trial.signal == "stop"]
    assert min(halts) < LOST_AFTER_S / 2 < LOST_AFTER_S * 1.5 < max(halts)
    assert {trial.halt_s for trial in trials if trial.signal == "kill -9"} == {0.0}
    assert trials[1].earlier(2).moment == trials[1].moment / 4
