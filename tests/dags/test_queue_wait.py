"""Triggers of runs that wait in the queue of a batch system."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from headrace.batch.queue_state import JobRecord
from headrace.clusters.lease_records import Ending, LeaseSpec
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from headrace.states import LeaseState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepSpec
from headrace_airflow import triggers
from headrace_airflow.triggers import StepTrigger, WaitingTask

NUM_RUNS = 10
POLL_S = 0.2
ROLE = Role.model_validate(
    {"backend": "slurm", "kind": "gang", "nodes": 2, "batch": {"poll": POLL_S}}
)

_SQUEUE = """\
#!/bin/bash
echo asked >> {folder}/calls
for job in {jobs}; do echo "$job|PENDING|N/A||Priority|headrace"; done
"""


class Queue:
    """A `squeue` that counts how often it is asked, with jobs that wait for their turn."""

    def __init__(self, folder: Path) -> None:
        self._calls = folder / "calls"
        program = folder / "squeue"
        jobs = " ".join(str(number) for number in range(NUM_RUNS))
        program.write_text(_SQUEUE.format(folder=folder, jobs=jobs))
        program.chmod(0o755)

    @property
    def num_calls(self) -> int:
        return len(self._calls.read_text().splitlines()) if self._calls.exists() else 0


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Queue(folder)


def waiting_lease(site: SiteFolder, number: int) -> LeaseFolder:
    """A lease whose job is in the queue."""
    folder = site.lease(f"run{number}-gpu-1")
    spec = LeaseSpec(
        lease_id=folder.lease_id, key=f"run{number}/gpu", run_id=f"run{number}", role_name="gpu",
        role=ROLE,
    )  # fmt: skip
    folder.path.mkdir(parents=True)
    write_record(folder.spec, spec)
    record = JobRecord(job_id=str(number), name=folder.lease_id, submitted_at=time.time())
    write_record(folder.job, record)
    return folder


def trigger_for(lease: LeaseFolder) -> StepTrigger:
    task = WaitingTask(
        dag_id="headrace_train", run_id=lease.lease_id, task_id="stage", try_number=1,
        poll_s=0.02, settle_s=0.0,
    )  # fmt: skip
    step = StepSpec(
        key=f"{lease.lease_id}/stage/1", kind="stage", run_id=lease.lease_id, name="stage",
        attempt=1, run_folder=str(lease.path),
    )  # fmt: skip
    folder = mailbox.submit(lease, step)
    return StepTrigger(asdict(task), str(folder.path), is_ready=False)


def test_waiting_runs_share_the_questions_to_the_queue(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One triggerer waits for all of them, and Slurm hears as much as for one."""
    shown: dict[str, list[str]] = {}

    def show(dag_id: str, run_id: str, task_id: str, key: str, text: str) -> None:
        assert (dag_id, task_id, key) == ("headrace_train", "stage", "machines")
        shown.setdefault(run_id, []).append(text)

    monkeypatch.setattr(triggers, "show", show)
    leases = [waiting_lease(SiteFolder(tmp_path), number) for number in range(NUM_RUNS)]

    async def fired(lease: LeaseFolder) -> object:
        return [event.payload async for event in trigger_for(lease).run()]

    async def wait_together() -> list[object]:
        waiting = [asyncio.create_task(fired(lease)) for lease in leases]
        while queue.num_calls < 3 or len(shown) < NUM_RUNS:
            await asyncio.sleep(0.02)
        for lease in leases:
            write_record(lease.closed, Ending(state=LeaseState.CLOSED, reason="asked to"))
        return list(await asyncio.gather(*waiting))

    begun = time.monotonic()
    events = asyncio.run(asyncio.wait_for(wait_together(), 60))
    assert events == [[{"state": "queued", "lease": "asked to"}]] * NUM_RUNS
    assert queue.num_calls <= 1 + (time.monotonic() - begun) / POLL_S
    for number, lease in enumerate(leases):
        wait = f"Slurm job {number} is pending: Priority, Slurm gives no expected start"
        assert shown[lease.lease_id][-2:] == [wait, "closed"]  # at first nobody has been asked
