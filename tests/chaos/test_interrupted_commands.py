"""Commands that run the job themselves are ended by Ctrl-C and kill -9, and not with a terminal."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.states import StepState
from support.airflow_service import NARROW_LEASES, NARROW_SITE, SITE, make_home
from support.disturbed import (
    GONE_S,
    HEADRACE,
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

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

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


def interrupt(process: subprocess.Popen[bytes], how: str, records: Records, run_id: str):
    """End the command that runs a job; look at what `headrace status` says then."""
    if how == "Ctrl-C":
        assert press_ctrl_c(process) == _INTERRUPTED
        assert records.ledger.run(run_id).state is StepState.CANCELLED
        assert all(one.state.is_final for one in records.ledger.attempts(run_id))
    else:
        process.kill()
        process.wait()
        status = subprocess.run(
            [HEADRACE, "status", run_id],
            env={**os.environ, "HEADRACE_HOME": str(records.home), "COLUMNS": "400"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"headrace resume {run_id}" in status.stdout
    assert_nothing_runs(records.home)


def resume(records: Records, run_id: str, log: Path) -> subprocess.Popen[bytes]:
    """Start the resumption of a run, and wait until it has taken the run up."""
    process = headrace(records.home, ["resume", run_id], log)

    def taken_up() -> bool:
        assert process.poll() is None, log.read_text()
        return not records.ledger.run(run_id).state.is_final

    wait_until(taken_up, GONE_S, "the run to be taken up again")
    return process


def test_a_direct_run_is_ended_twice_and_resumed(
    direct: Records, undisturbed: Result, rng: random.Random, tmp_path: Path
):
    """By Ctrl-C and by kill -9, one of them the run and the other one its resumption."""
    log = tmp_path / "run.log"
    process = headrace(direct.home, ["run", "digits", "--site", SITE, *OVERRIDES], log)
    run_id = newest_run(direct, log, process)
    first, second = rng.sample(["Ctrl-C", "kill -9"], 2)
    for number, (how, least, most) in enumerate(((first, 0.1, 0.3), (second, 0.4, 0.7))):
        wait_until(  # of a busy machine the first moment may be later than the second
            lambda number=number: len(direct.attempts(run_id, "train")) > number,
            LONG_S,
            "the command to train",
        )
        training_moment(direct, run_id, rng, least, most)
        interrupt(process, how, direct, run_id)
        process = resume(direct, run_id, log)
    assert process.wait(LONG_S) == 0, log.read_text()
    direct.assert_settled(run_id)
    assert direct.result(run_id) == undisturbed
    _, *later = direct.attempts(run_id, "train")
    assert len(later) == 2
    for attempt in later:
        assert direct.events(attempt, "launch")[0]["resume"] is not None
    assert_nothing_runs(direct.home)


def test_killed_commands_do_not_keep_others_from_their_leases(tmp_path: Path):
    """As many as the site has leases are killed, with `kill -9`; nobody reaps; another one runs."""
    records = Records(make_home(tmp_path / "home"))
    killed = []
    for number in range(NARROW_LEASES):
        log = tmp_path / f"killed-{number}.log"
        process = headrace(records.home, ["run", "digits", "--site", NARROW_SITE, *OVERRIDES], log)
        killed.append((process, newest_run(records, log, process)))
    for process, run_id in killed:
        wait_until(
            lambda run_id=run_id: records.ledger.leases(run_id=run_id), LONG_S, "it to have a lease"
        )
        process.kill()
        process.wait()
    log = tmp_path / "next.log"
    process = headrace(records.home, ["run", "digits", "--site", NARROW_SITE, "--pack-only"], log)
    assert process.wait(LONG_S) == 0, log.read_text()
    states = [lease.state for _, run_id in killed for lease in records.ledger.leases(run_id=run_id)]
    assert len(states) >= NARROW_LEASES  # one may have opened that of its next step
    assert not all(state.is_active for state in states)  # others may have ended a little later
    assert_nothing_runs(records.home)


def test_a_sweep_outlives_its_terminal(direct: Records, tmp_path: Path):
    """The window is closed when one of three trials has ended; the others end as if it were not."""
    log = tmp_path / "terminal.log"
    window = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])", HEADRACE]
    sweep = ["sweep", "waiting", "--site", SITE, "+train.function.x=1,2,3"]
    with log.open("wb") as shown:
        terminal = subprocess.Popen(
            [*window, *sweep, f"+train.function.notes={tmp_path}"],
            stdin=subprocess.DEVNULL,
            stdout=shown,
            env={**os.environ, "HEADRACE_HOME": str(direct.home)},
        )
    run_id = newest_run(direct, log, terminal)

    def done() -> int:
        assert terminal.poll() is None, log.read_text()
        return len(direct.ledger.trials(run_id, StepState.SUCCEEDED))

    (tmp_path / "go-1").touch()
    assert wait_until(done, LONG_S, "the first trial to end") == 1
    terminal.kill()
    terminal.wait()
    (tmp_path / "go").touch()
    wait_until(lambda: not started_by("", direct.home), LONG_S, "all processes to end")
    direct.assert_settled(run_id)
    assert len(direct.ledger.trials(run_id, StepState.SUCCEEDED)) == 3


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
