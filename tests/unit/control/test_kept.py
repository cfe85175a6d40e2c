"""What an attempt that ended early leaves for the next one is in the ledger, for every cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.control.ledgers import open_ledger
from headrace.control.retrying import KEPT, TOTAL
from headrace.control.steps import Ticket, collect
from headrace.processes import ProcessIdentity
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.records import Failure, Progress, StepResult, StepSpec, StepStatus
from headrace.storage.atomic import write_record
from headrace.training import checkpoints
from support.runs import attempt_row_of, lease_on_disk, make_run

ENDS = [
    (StepState.TIMED_OUT, FailureClass.TIMED_OUT),
    (StepState.PREEMPTED, FailureClass.PREEMPTED),
    (StepState.FAILED, FailureClass.OUT_OF_MEMORY),
]


@pytest.mark.parametrize(("state", "failure_class"), ENDS)
def test_the_step_of_the_newest_checkpoint_is_kept(
    state: StepState, failure_class: FailureClass
) -> None:
    run = make_run()
    lease_id = lease_on_disk(run, "gpu", host=ProcessIdentity.of())
    attempt_row_of(run, "train", lease_id)
    (row,) = open_ledger().attempts(run.run_id)
    lease = run.lease_folder(lease_id)
    spec = StepSpec(
        key=row.key, kind="train", run_id=run.run_id, name="train", attempt=1,
        run_folder=str(run.folder.path),
    )  # fmt: skip
    folder = mailbox.submit(lease, spec)
    run.folder.checkpoints.mkdir(parents=True)
    for step in (20, 24):
        (run.folder.checkpoints / checkpoints.name_of(step)).write_bytes(b"x")
    progress = Progress(done=26, total=60, unit="steps", phase="epoch 2/3")
    write_record(folder.status, StepStatus(state=StepState.RUNNING, progress=progress))
    failure = Failure(failure_class=failure_class, error="", message="its time is over")
    write_record(
        folder.result, StepResult(state=state, failure=failure, started_at=1, finished_at=2)
    )
    ticket = Ticket(
        run_id=run.run_id, step="train", attempt=1, lease_id=lease_id,
        lease_folder=str(lease.path), step_folder=str(Path(folder.path)),
    )  # fmt: skip
    collect(run, ticket)
    (row,) = open_ledger().attempts(run.run_id)
    assert row.outputs == {KEPT: 24.0, TOTAL: 60.0}
