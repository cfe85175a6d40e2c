"""The process of a part outlives whatever starts it, and goes on where a killed one stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.multi_site.part import is_served, start_part
from headrace.multi_site.parts import make_part
from headrace.runs.owners import owner_process
from headrace.runs.parts import PartStatus, part_status
from headrace.states import StepState
from support.many_sites import packed_suite
from support.waiting import wait_until

_CALLER = """
import sys, time
from headrace.multi_site.part import start_part
from headrace.runs.runs import open_run
start_part(open_run(sys.argv[1]))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftover_processes")
def test_a_parts_process_outlives_its_caller_and_goes_on_after_a_kill(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    suite = packed_suite(headrace_home)
    part = make_part(suite, "box")

    def record() -> RunRecord:
        return open_ledger().run(part.run_id)

    def process() -> psutil.Process:
        identity = owner_process(record().owner)
        assert identity is not None
        return psutil.Process(identity.pid)

    command = [sys.executable, "-c", _CALLER, part.run_id]
    caller = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert caller.stdout is not None
    assert caller.stdout.readline() == b"started\n"
    wait_until(lambda: part_status(part.folder).phase == "running", 60, "the part to run")
    first = process()
    assert caller.pid not in {each.pid for each in first.parents()}
    os.killpg(caller.pid, signal.SIGKILL)
    caller.communicate()

    def step_runs() -> bool:
        rows = open_ledger().attempts(part.run_id, "suite")
        return bool(rows) and rows[-1].state is StepState.RUNNING

    wait_until(step_runs, 90, "the part's trials to be waited for")
    start_part(part)
    assert process() == first
    assert first.is_running()

    owner = record().owner
    first.kill()
    wait_until(lambda: not is_served(part.folder), 10, "the lock to be free")
    write_record(part.folder.part, PartStatus())
    start_part(part)
    wait_until(lambda: record().owner != owner, 20, "the next process to take the part over")
    wait_until(lambda: part_status(part.folder).phase == "running", 30, "it to go on")
    log = part.folder.log.relative_to(part.site_folder.path)
    (row,) = open_ledger().attempts(part.run_id, "suite")
    assert row.state is StepState.RUNNING  # on the lease of before

    folder = part.site_folder.path  # as of a mount that is lost
    away = folder.rename(folder.with_name("away"))
    wait_until(lambda: "waits for its folder" in (away / log).read_text(), 20, "it to notice")
    time.sleep(6)
    assert process().is_running()
    assert record().state is StepState.RUNNING
    shutil.rmtree(folder, ignore_errors=True)  # its host may have written what it ended
    away.rename(folder)

    open_ledger().finish_run(suite.run_id, StepState.CANCELLED, time.time())
    wait_until(lambda: not is_served(part.folder), 60, "the part to end with its suite")
    assert record().state is StepState.CANCELLED
    assert part_status(part.folder).why == "the suite has ended"
