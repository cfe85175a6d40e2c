"""A suite whose driver, worker, host and whole lease are killed: what has finished runs once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headrace.clusters import lease_client
from headrace.clusters.lease_records import HostRecord
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.recipe.site import Role
from headrace.states import LeaseState
from headrace.suites.event_log import Journal
from headrace.suites.suite_state import SuiteState
from support.leases import TESTS, opened, wait_for_state
from support.scripted_trials import executions, suite_context
from support.waiting import wait_until

NUM_TRIALS = 40
ROLE = Role(kind="gang", nodes=2, threads_per_node=1, idle_stop=3600)


def _drive(lease: LeaseFolder) -> subprocess.Popen[bytes]:
    points: list[dict[str, float]] = [{"s": 0.1 * (number % 4)} for number in range(NUM_TRIALS)]
    points[12] = {"die": 1}  # it kills its worker
    context = suite_context(lease, "killed", points=points)
    command = [sys.executable, "-m", "support.suite_driver", str(context.folder.path)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(TESTS)})


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _host(lease: LeaseFolder) -> int:
    record = read_record(lease.host, HostRecord)
    return record.process.pid


@pytest.mark.chaos
def test_what_has_finished_runs_once_whoever_is_killed(
    tmp_path: Path, no_leftover_processes: None
) -> None:
    lease = opened(tmp_path, ROLE)
    run = RunFolder(tmp_path / "runs" / "killed")

    def ended(count: int) -> None:
        wait_until(lambda: len(executions(run, "ended")) >= count, 120, f"{count} trials to end")

    driver = _drive(lease)
    ended(4)
    _kill(driver)
    driver = _drive(lease)
    ended(16)
    driver.send_signal(signal.SIGSTOP)  # its lease is lost meanwhile, and somebody else goes on
    os.kill(_host(lease), signal.SIGKILL)
    wait_for_state(lease, LeaseState.LOST, 60)
    lease_client.end(lease)
    again = opened(tmp_path, ROLE, lease_id="demo-2")
    second = _drive(again)
    ended(24)
    driver.send_signal(signal.SIGCONT)
    driver.wait(120)
    assert second.wait(120) == 0
    lease_client.end(again)

    suite_state = SuiteState()
    with Journal(run, "the test") as journal:
        for entry in journal.entries():
            suite_state.take(entry)
    assert {state: count for state, count in suite_state.counts.items() if count} == {
        "succeeded": NUM_TRIALS
    }
    assert (
        max(len(row.failed) for row in suite_state.rows.values()) <= 2
    )  # by the worker that was killed
    finished = Counter(number for number, _ in executions(run, "ended"))
    assert set(finished) == set(range(1, NUM_TRIALS + 1))
    _check_nothing_began_after_it_had_finished(run)


def _check_nothing_began_after_it_had_finished(run: RunFolder) -> None:
    results = {
        path.parent.parent.parent.name for path in run.trials.glob("*/attempts/*/result.json")
    }
    assert len(results) == NUM_TRIALS
    for trial in run.trials.iterdir():
        written = [
            path.parent.name
            for path in sorted(trial.glob("attempts/*/result.json"))
            if '"state": "succeeded"' in path.read_text()
        ]
        begun = [attempt for number, attempt in executions(run) if number == int(trial.name)]
        assert len(written) == 1, trial
        assert max(begun) == int(written[0]), trial
