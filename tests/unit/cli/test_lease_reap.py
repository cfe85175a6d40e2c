"""`headrace lease reap` closes runs of processes that have gone, in the ledger too."""

from __future__ import annotations

import subprocess
import sys

from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.runs.lifecycle import create_run
from headrace.runs.runs import RunRequest
from headrace.states import StepState
from support.command_line import headrace


def owner_that_has_gone() -> str:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        me = ProcessIdentity.of(process.pid)
        process.kill()
    return f"cli:{me.host}:{me.pid}:{me.started_s!r}"


def test_runs_of_processes_that_have_gone_are_closed(headrace_home):
    """pains 22: nothing stays open for a client that was killed."""
    request = RunRequest(recipe="digits", site="laptop", key="k", owner=owner_that_has_gone())
    run = create_run(request)
    answer = headrace("lease", "reap")
    assert answer.exit_code == 0, answer.output
    assert run.run_id in answer.output
    assert open_ledger().run(run.run_id).state is StepState.LOST
    assert "Nothing to reap" in headrace("lease", "reap").output


def test_runs_of_airflow_are_left_to_its_reaper(headrace_home):
    request = RunRequest(recipe="digits", site="laptop", key="k", owner="airflow:dag:run")
    run = create_run(request)
    assert "Nothing to reap" in headrace("lease", "reap").output
    assert open_ledger().run(run.run_id).state is StepState.RUNNING
