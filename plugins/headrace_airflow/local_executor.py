"""Airflow's LocalExecutor, which here requeues tasks of a killed worker."""

from __future__ import annotations

import multiprocessing
from typing import Any

from airflow.executors import local_executor


class LocalExecutor(local_executor.LocalExecutor):  # type: ignore[misc]
    """Runs tasks in processes of this machine.

    If a worker is killed after it took a task from the queue and before it reported the task's
    start, the task stays queued for ever: Airflow's own class never requeues it.
    """

    def revoke_task(self, *, ti: Any) -> None:
        """Forget a task that is queued for longer than `task_queued_timeout`; it is queued again.

        Raises:
            NotImplementedError: Tasks wait for a worker, perhaps this one, too; the scheduler then
                leaves it until its next look.
        """
        with self._unread_messages:
            num_waiting = self._unread_messages.value
        if num_waiting:
            raise NotImplementedError(f"{num_waiting} tasks wait for a worker")
        self.log.warning("%s was lost with its worker; it is queued again", ti)
        self.queued_tasks.pop(ti.key, None)
        self.running.discard(ti.key)

    def end(self) -> None:
        """End with the workers, which Python waits for, also if a full disk refuses the log."""
        try:
            super().end()
        finally:
            for worker in multiprocessing.active_children():
                worker.kill()
