"""Ctrl-C and kill -9 of commands that run the job themselves: nothing is left, resuming works."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from headrace.states import StepState
from support.airflow_service import SITE, make_home
from support.disturbed import (
    GONE_S,
    LONG_S,
    OVERRIDES,
    Records,
    Result,
    headrace,
    newest_run,
    training_moment,
)
from support.leftovers import describe, started_by
from support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

_INTERRUPTED = 130


def assert_nothing_runs(home: Path):
    """Every process that works below the home has ended within a minute."""
    try:
        wait_until(lambda: not started_by("", home), GONE_S, "all processes to end")
    except AssertionError as late:
        raise AssertionError(f"{late}\n{describe(started_by('', home))}") from late


def press_ctrl_c(process: subprocess.Popen[bytes]) -> int:
    """SIGINT to the whole foreground group, as a terminal does; gives the exit code."""
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(GONE_S)


def resumed(records: Records, run_id: str, log: Path) -> Result:
    """Result of the run after `headrace resume`."""
    process = headrace(records.home, ["resume", run_id], log)
    assert process.wait(LONG_S) == 0, log.read_text()
    records.assert_settled(run_id)
    return records.result(run_id)


def assert_went_on(records: Records, run_id: str):
    """The second attempt at training went on from a checkpoint."""
    _, second = records.attempts(run_id, "train")
    assert records.events(second, "launch")[0]["resume"] is not None


@pytest.mark.parametrize("how", ["Ctrl-C", "kill -9"])
def test_a_direct_run_is_ended_and_resumed(
    how: str, direct: Records, undisturbed: Result, rng: random.Random, tmp_path: Path
):
    log = tmp_path / "run.log"
    process = headrace(direct.home, ["run", "digits", "--site", SITE, *OVERRIDES], log)
    run_id = newest_run(direct, log, process)
    training_moment(direct, run_id, rng)
    if how == "Ctrl-C":
        assert press_ctrl_c(process) == _INTERRUPTED, log.read_text()
        assert direct.ledger.run(run_id).state is StepState.CANCELLED
        assert all(one.state.is_final for one in direct.ledger.attempts(run_id))
    else:
        process.kill()
        process.wait()
    assert_nothing_runs(direct.home)
    assert resumed(direct, run_id, log) == undisturbed
    assert_went_on(direct, run_id)
    assert_nothing_runs(direct.home)


@pytest.mark.airflow
def test_ctrl_c_ends_the_demo_with_every_child(rng: random.Random, tmp_path: Path):
    records = Records(make_home(tmp_path / "home"))
    log = tmp_path / "demo.log"
    process = headrace(records.home, ["demo", "--once", *OVERRIDES], log)
    run_id = newest_run(records, log, process)
    training_moment(records, run_id, rng)
    assert press_ctrl_c(process) == _INTERRUPTED, log.read_text()
    assert_nothing_runs(records.home)
    assert records.ledger.run(run_id).state is StepState.CANCELLED
    assert all(one.state.is_final for one in records.ledger.attempts(run_id))
    assert not [one for one in records.ledger.leases(run_id=run_id) if one.state.is_active]
