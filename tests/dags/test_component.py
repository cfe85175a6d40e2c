"""Components of Airflow: their begin and end, what they read first, and their executor."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from airflow.models.taskinstancekey import TaskInstanceKey

from headrace.ledger import ledger as ledgers
from headrace.ledger.ledger import open_ledger
from headrace.recipe import load
from headrace.runs.runs import open_run
from headrace_airflow.local_executor import LocalExecutor
from headrace_airflow.service import airflow_settings
from headrace_airflow.warm_caches import warm_caches
from support.runs import make_run

_AIRFLOW = """
import atexit, gc, os, sys

class Large:
    def __del__(self):
        os.write(1, b"collected,")

kept = Large()
kept.itself = kept

def main():
    kind = "collected" if gc.get_freeze_count() < 10_000 else "kept"
    print("imports", kind, "others", "collected" if gc.isenabled() else "kept", end=",")
    atexit.register(lambda: print("closed", end=","))
    if os.fork() == 0:
        return
    print("child", os.waitstatus_to_exitcode(os.wait()[1]), end=",")
    if sys.argv[1:] == ["raise"]:
        raise ValueError("no such component")
    if sys.argv[1:]:
        sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
"""


@pytest.mark.parametrize(
    ("argument", "code", "told"),
    [
        ([], 0, ""),
        (["3"], 3, ""),
        (["why"], 1, "why"),
        (["raise"], 1, "no such component"),
    ],
)
def test_a_component_ends_with_its_code_and_without_a_last_collection(
    tmp_path: Path, argument: list[str], code: int, told: str
) -> None:
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").touch()
    (tmp_path / "airflow" / "__main__.py").write_text(_AIRFLOW)
    done = subprocess.run(
        [sys.executable, "-m", "headrace_airflow.component", *argument],
        # nothing that is printed before the fork is printed by the child, too
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert told in done.stderr
    begun = "imports kept others collected,"
    assert done.stdout == f"{begun}closed,child 0,closed,"


_PARSED = """
import runpy, sys

from headrace_airflow.component import preload
from headrace_airflow.service import dags_folder

preload([sys.argv[1], "--flag"])
before = set(sys.modules)
for file in dags_folder().glob("*.py"):
    runpy.run_path(str(file))
more = {name for name in sys.modules if name.split(".")[0] in ("headrace", "headrace_airflow")}
print(sorted(more - before))
"""


@pytest.mark.usefixtures("headrace_home")
@pytest.mark.parametrize("component", ["scheduler", "dag-processor"])
def test_the_children_of_a_component_import_no_more_of_headrace(component: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARSED, component], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_was_read_is_kept(headrace_home, monkeypatch):
    run = make_run()
    ledgers._opened.cache_clear()
    warm_caches()
    monkeypatch.setattr(load, "load_site", None)
    monkeypatch.setattr(ledgers.Ledger, "open", None)
    assert open_ledger().run(run.run_id).run_id == run.run_id
    assert open_run(run.run_id).site_now.name == run.site.name


def test_a_ledger_that_cannot_be_opened_is_told_and_no_obstacle(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HEADRACE_LEDGER", "mysql://nowhere/ledger")
    warm_caches()
    assert "names the database 'mysql'" in caplog.text


def test_a_run_that_cannot_be_read_is_told_and_no_obstacle(headrace_home, monkeypatch, caplog):
    make_run()
    monkeypatch.setattr(
        "headrace_airflow.warm_caches.run_details", lambda _: Path("/proc/self/mem").read_bytes()
    )
    warm_caches()
    assert "Input/output error" in caplog.text


KEY = TaskInstanceKey("headrace_train", "train", "manual__1", 1, -1)
TASK = SimpleNamespace(key=KEY)


def executor(num_waiting: int) -> LocalExecutor:
    """An executor that believes that the task runs; its workers are not started."""
    made = LocalExecutor(parallelism=1)
    made.running.add(KEY)
    made._unread_messages = multiprocessing.Value(ctypes.c_uint, num_waiting)
    return made


def test_a_lost_task_frees_its_place():
    busy = executor(num_waiting=0)
    busy.revoke_task(ti=TASK)
    assert busy.running == set()
    busy.revoke_task(ti=TASK)  # harmless when it is gone


def test_a_task_that_may_still_wait_for_a_worker_is_left_alone():
    busy = executor(num_waiting=1)
    with pytest.raises(NotImplementedError, match="1 tasks wait"):
        busy.revoke_task(ti=TASK)
    assert busy.running == {KEY}


def test_it_ends_with_its_workers_where_its_log_has_no_room(monkeypatch):
    """Python waits for them at its end: the scheduler would neither work nor be started again."""
    full = OSError(errno.ENOSPC, "No space left on device")
    ending = LocalExecutor(parallelism=2)
    ending.start()
    workers = list(ending.workers.values())
    monkeypatch.setattr(LocalExecutor, "log", SimpleNamespace(info=Mock(side_effect=full)))
    try:
        with pytest.raises(OSError, match="No space"):
            ending.end()
        for worker in workers:
            worker.join(60)
        assert not any(worker.is_alive() for worker in workers)
    finally:
        for worker in workers:
            worker.kill()


def test_headrace_up_uses_it(tmp_path):
    name = airflow_settings(tmp_path, 8081, tmp_path / "secret")["AIRFLOW__CORE__EXECUTOR"]
    assert name == f"{LocalExecutor.__module__}.{LocalExecutor.__qualname__}"
