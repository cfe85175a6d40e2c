"""Triggers look at files and say when there is something to do; they never submit anything.

The only thing that a trigger ever writes is the request to stop work whose task a user has ended.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from headrace.files.layout import LeaseFolder, StepFolder
from headrace.ledger.ledger import open_ledger
from headrace.states import LeaseState
from headrace.status.lease import LeaseView, look
from headrace.status.step import in_words
from headrace.steps import mailbox
from headrace.steps.mailbox import StepStatus
from headrace_airflow.airflow_api import show, stopped, task_states

MACHINES_KEY = "machines"
"""XCom key of how the machines stand that a task waits for."""

_AT_MOST_EVERY_S = 10.0
"""A line on a step not sooner than this after the last one: epochs may take less than a second."""

_AT_LEAST_EVERY_S = 30.0
"""A line on a step at least this often, also in an epoch that takes hours."""

_WAITING_EVERY_S = 60.0
"""A line on an unchanged wait for machines at least this often: it may last for days."""

_UNTIL_CALLED_S = 20.0
"""Others who come first and leave a place free for so long are called by asking for it."""

_IN_QUEUE = 5
"""A wait in a queue is looked at so much less often than work that goes on."""


class ProgressLines:
    """When to tell how a step stands, or what it waits for."""

    def __init__(self) -> None:
        self._told: object = None
        self._phase = ""
        self._told_at = 0.0

    def line(self, status: StepStatus, now: float, waits_for: str = "") -> str | None:
        """The line on a step, or on the machines it waits for, to write now; None before then."""
        if waits_for:
            is_due = self._is_due(waits_for, now, _WAITING_EVERY_S)
            return f"Waiting: {waits_for}" if is_due else None
        phase = status.progress.phase
        every_s = _AT_LEAST_EVERY_S if phase == self._phase else _AT_MOST_EVERY_S
        if not self._is_due(status.state.value, now, every_s):
            return None
        self._phase = phase
        return in_words(status)

    def _is_due(self, subject: object, now: float, every_s: float) -> bool:
        if subject == self._told and now - self._told_at < every_s:
            return False
        self._told, self._told_at = subject, now
        return True


@dataclass(frozen=True, kw_only=True)
class WaitingTask:
    """The task that waits for a trigger, and how it wants it to look."""

    dag_id: str
    run_id: str
    task_id: str
    try_number: int
    poll_s: float
    """Seconds between two looks."""
    settle_s: float = 3.0
    """Seconds before the first look: more than a worker's `min_heartbeat_interval`."""

    def __str__(self) -> str:
        return f"task {self.task_id} (try {self.try_number}) of {self.dag_id} {self.run_id}"


class _Watcher(BaseTrigger):  # type: ignore[misc]
    """What the triggers share: their task, and how they travel to the triggerer."""

    def __init__(self, task: dict[str, Any], **places: Any) -> None:
        super().__init__()
        self.waiting = WaitingTask(**task)
        self._places = places
        self._shown = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        kind = type(self)
        arguments = {"task": asdict(self.waiting), **self._places}
        return f"{kind.__module__}.{kind.__qualname__}", arguments

    async def _settle(self) -> None:
        """Wait until Airflow's executor has reported that the task was deferred.

        A trigger that fires before costs the task a try: Airflow then takes the report for the end
        of the try that the trigger has just queued.
        """
        await asyncio.sleep(self.waiting.settle_s)

    async def _show(self, lease: LeaseView) -> None:
        """Show how the machines stand when that changes; another triggerer shows the same again."""
        text = lease.waits_for or (lease.state.value if self._shown else "")
        if text != self._shown:
            self._shown, task = text, self.waiting
            names = (task.dag_id, task.run_id, task.task_id)
            await sync_to_async(show)(*names, MACHINES_KEY, text)


class StepTrigger(_Watcher):
    """Fires once when a step or its lease has ended; unless `is_ready`, when its lease is ready."""

    def __init__(self, task: dict[str, Any], step_folder: str, *, is_ready: bool) -> None:
        super().__init__(task, step_folder=step_folder, is_ready=is_ready)
        self.step_folder = StepFolder(Path(step_folder))
        self.lease_folder = LeaseFolder(self.step_folder.path.parents[1])
        self.is_ready = is_ready

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is something to do; progress is logged."""
        lines = ProgressLines()
        await self._settle()
        while True:
            now = await asyncio.to_thread(look, self.lease_folder, self.step_folder)
            lease = now.lease
            is_starting = lease.state is LeaseState.STARTING
            waits_for = lease.waits_for or (f"lease {lease.lease_id} starts" if is_starting else "")
            await self._show(lease)
            line = lines.line(now.status, time.monotonic(), waits_for)
            if line is not None:
                self.log.info("%s", line)
            if now.final or (lease.dashboard_url and not self.is_ready):
                yield TriggerEvent({"state": now.status.state.value, "lease": lease.why_ended})
                return
            await asyncio.sleep(self.waiting.poll_s * (_IN_QUEUE if lease.waits_for else 1))

    async def on_kill(self) -> None:
        """Stop this attempt after a user has ended its task; a later attempt is never hit.

        A triggerer that was out of touch for a while has to drop its triggers in the same way,
        although the work goes on: the task is deferred, and another triggerer has taken over.
        """
        task = self.waiting
        states = await sync_to_async(task_states)(task.dag_id, task.run_id)
        if states.get(task.task_id) == "deferred":
            self.log.info("%s still waits; nothing is stopped", task)
            return
        await asyncio.to_thread(mailbox.request_cancel, self.step_folder, stopped(str(task)))


class RoomTrigger(_Watcher):
    """Fires once when it seems to be a lease's turn to get a place of its site.

    That is a hint only; the ledger decides when the task asks again. Waiting times are spread out,
    so that twenty waiting tasks do not all look at the same moment. Its `places` are what
    `num_before` of the ledger is asked for.
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until it is the lease's turn, or others who come first have left a place free."""
        await self._settle()
        passed_over_s = 0.0
        while True:
            pause_s = self.waiting.poll_s * random.uniform(2, 4)
            await asyncio.sleep(pause_s)
            before = await asyncio.to_thread(lambda: open_ledger().num_before(**self._places))
            passed_over_s = passed_over_s + pause_s if before else 0.0
            if before == 0 or passed_over_s > _UNTIL_CALLED_S:
                yield TriggerEvent({})
                return
