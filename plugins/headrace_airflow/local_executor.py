"""Airflow's LocalExecutor, which here gives back what a killed worker has taken along."""

from __future__ import annotations

import multiprocessing
from typing import Any

from airflow.executors import local_executor


class LocalExecutor(local_executor.LocalExecutor):  # type: ignore[misc]
    """Runs tasks in processes of this machine.

    A worker that is killed after it took a task from the queue, and before it told Airflow that the
    task has started, leaves it queued for ever: Airflow's own class never gives a task back.
    """

    def revoke_task(self, *, ti: Any) -> None:
        """Forget a task that is queued for longer than `task_queued_timeout`; it is queued again.

        Raises:
            NotImplementedError: Some tasks wait for a worker, this one perhaps among them; the
                scheduler then leaves it alone until it looks again.
        """
        with self._unread_messages:
            num_waiting = self._unread_messages.value
        if num_waiting:
            raise NotImplementedError(f"{num_waiting} tasks wait for a worker")
        self.log.warning("%s was lost with its worker; it is queued again", ti)
        self.queued_tasks.pop(ti.key, None)
        self.running.discard(ti.key)

    def end(self) -> None:
        """End with the workers, for which Python waits, also if a full disk takes no more log."""
        try:
            super().end()
        finally:
            for worker in multiprocessing.active_children():
                worker.kill()
