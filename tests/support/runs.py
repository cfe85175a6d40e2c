"""Runs and leases for tests of the control side: real ledger, real folders, few processes."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

from headrace.files.atomic import write_record
from headrace.ledger.database import default_url
from headrace.ledger.ledger import Ledger, open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.processes.identity import ProcessIdentity
from headrace.runs.lifecycle import create_run
from headrace.runs.owners import process_owner
from headrace.runs.runs import Run, RunRequest
from headrace.steps.mailbox import StepStatus
from support.factories import write_lease
from support.ledger_rows import attempt_row, lease_row

_PROJECT = Path(__file__).parents[2]
"""What its repository has not committed is not recorded: git would look at each of its files."""


def make_run(**changes: Any) -> Run:
    """A run of the digits on the laptop, owned by this process."""
    values: dict[str, Any] = {
        "recipe": "digits",
        "site": "laptop",
        "key": f"test:{uuid.uuid4().hex}",
        "owner": process_owner(),
    }
    _lay_ledger()
    is_of_project = "recipe" not in changes and Path.cwd() == _PROJECT
    hidden = {"GIT_DIR": os.devnull} if is_of_project else {}
    with mock.patch.dict(os.environ, hidden):
        return create_run(RunRequest(**{**values, **changes}))


def _lay_ledger() -> None:
    """Where there is no ledger, a copy of a new one: making its tables takes longer."""
    scheme, _, name = default_url().partition(":///")
    file = Path(name)
    if scheme == "sqlite" and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_bytes(new_ledger())


@functools.cache
def new_ledger() -> bytes:
    """The file of a ledger without rows."""
    with tempfile.TemporaryDirectory() as folder:
        Ledger.open(f"sqlite:///{folder}/ledger.db")
        return Path(folder, "ledger.db").read_bytes()


def ended_process() -> ProcessIdentity:
    """A process that was here and has ended."""
    child = subprocess.Popen(["sleep", "600"])
    identity = ProcessIdentity.of(child.pid)
    child.kill()
    child.wait()
    return identity


def ended_owner() -> str:
    """Owner text of a process that has ended."""
    gone = ended_process()
    return f"cli:{gone.host}:{gone.pid}:{gone.started_s!r}"


def lease_on_disk(run: Run, role: str = "cpu", host: ProcessIdentity | None = None) -> str:
    """A lease whose folder and row are there, and whose host is the given process.

    Args:
        run: The run it belongs to.
        role: Role of the site.
        host: The host; by default one that has ended, so that the lease is lost.
    """
    lease_id = f"{run.run_id}-{role}-1"
    folder = run.lease_folder(lease_id)
    folder.path.mkdir(parents=True)
    key = f"{run.run_id}/{role}"
    named = {"key": key, "run_id": run.run_id, "role_name": role, "role": run.site.roles[role]}
    write_lease(folder, host or ended_process(), **named)
    record = lease_row(
        lease_id, key=key, run_id=run.run_id, site_name=run.site.name, role=role,
        folder=str(folder.path), created_at=time.time(), owner=run.user,
    )  # fmt: skip
    open_ledger().add_lease(record, max_active=100)
    return lease_id


def attempt_row_of(run: Run, step: str, lease_id: str, **changes: Any) -> AttemptRecord:
    """First attempt at a step, in the ledger only."""
    known = {"run_id": run.run_id, "lease_id": lease_id, "created_at": time.time()}
    return open_ledger().add_attempt(attempt_row(step, **{**known, **changes}))


def running(step: str, status: StepStatus, **changes: Any) -> Run:
    """A run of which a step goes on, as its files tell."""
    run = make_run(**changes)
    lease_id = lease_on_disk(run)
    attempt_row_of(run, step, lease_id, number=1)
    folder = run.lease_folder(lease_id).step(1)
    folder.path.mkdir(parents=True)
    write_record(folder.status, status)
    return run
