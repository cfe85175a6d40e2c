"""Suites on machines that have no price yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.runs.trials import note_trials
from headrace.runs.usage import note_usage
from headrace.states import LeaseState, StepState
from headrace.suites.records import Added, Ended, Trial
from support.factories import write_site
from support.ledger_rows import machine_row
from support.runs import attempt_row_of, lease_on_disk, make_run


def site_file(home: Path, **changes: Any) -> str:
    write_site(home, "mine", **changes)
    return "mine"


def suite_on(site: str, kind: str) -> Run:
    """A suite of one trial of an hour, on a machine that was there for two and has no price."""
    run = make_run(site=site)
    lease_id = lease_on_disk(run, "gpu")
    open_ledger().put_machines(
        [machine_row(kind, lease_id=lease_id, kind=kind, started_at=0.0, ended_at=7200.0,
                     billed_s=7200.0)]
    )  # fmt: skip
    open_ledger().set_lease_state(lease_id, LeaseState.CLOSED, ended_at=7200.0)
    attempt_row_of(run, "suite", lease_id, state=StepState.SUCCEEDED, number=None,
                   started_at=0.0, finished_at=7200.0)  # fmt: skip
    entries = (
        Added(trial=Trial(number=1, name="1", values={}, group=1)),
        Ended(number=1, attempt=1, state=StepState.SUCCEEDED, is_final=True, lease_id=lease_id,
              started_at=0.0, finished_at=3600.0, usage=AttemptUsage(node=kind)),
    )  # fmt: skip
    run.folder.journal.write_text("".join(f"{each.model_dump_json()}\n" for each in entries))
    note_trials(run.folder)
    note_usage(run.run_id)
    open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, 7200.0)
    return run
