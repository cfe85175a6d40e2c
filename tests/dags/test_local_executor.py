"""A task that a killed worker has taken along is given back, one that still waits is not."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from airflow.models.taskinstancekey import TaskInstanceKey

from headrace_airflow.local_executor import LocalExecutor
from headrace_airflow.service import airflow_settings

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
