"""Asking a run, or a lease, to stop."""

from __future__ import annotations

from headrace.clusters import lease_client
from headrace.errors import StepError
from headrace.execution.reap import end_run
from headrace.execution.step_attempts import cancel_step
from headrace.files.layout import LeaseFolder
from headrace.ledger.ledger import open_ledger
from headrace.runs.audit import Actor, note
from headrace.runs.planned_steps import steps_of
from headrace.runs.runs import Run
from headrace.states import StepState


def ask_to_stop(run: Run, by: Actor, step: str | None = None) -> tuple[str, ...]:
    """Ask the running steps of a run, or one of them, to stop; which were asked.

    A run that goes on and has none, as it waits for a lease, is ended itself: none are told.

    Raises:
        StepError: None of them is running.
    """
    names = [step] if step else [each.name for each in steps_of(run.recipe, run.request.kind)]
    asked = tuple(name for name in names if cancel_step(run, name, f"asked by {by}"))
    if not asked:
        if step or open_ledger().run(run.run_id).state.is_final:
            raise StepError(f"No step of run {run.run_id} is running")
        end_run(run, StepState.CANCELLED, f"asked by {by}")
    note(by, "cancel", run.run_id, ", ".join(asked))
    return asked


def close_lease(folder: LeaseFolder, by: Actor, grace_s: float, reason: str = "") -> None:
    """End a lease, which gets `grace_s` seconds to do so by itself, on behalf of somebody."""
    run_id = lease_client.spec(folder).run_id
    lease_client.end(folder, grace_s, f"{reason} (closed by {by})" if reason else f"closed by {by}")
    note(by, "close", run_id, " ".join(filter(None, (folder.lease_id, reason))))
