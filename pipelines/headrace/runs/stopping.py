"""Asking a run to stop."""

from __future__ import annotations

from headrace.errors import StepError
from headrace.runs.flow import steps_of
from headrace.runs.runs import Run
from headrace.runs.steps import cancel_step


def ask_to_stop(run: Run, reason: str, step: str | None = None) -> tuple[str, ...]:
    """Ask the running steps of a run, or one of them, to stop; which were asked.

    Raises:
        StepError: None of them is running.
    """
    names = [planned.name for planned in steps_of(run.recipe, run.request.kind)]
    asked = [name for name in ([step] if step else names) if cancel_step(run, name, reason)]
    if not asked:
        raise StepError(f"No step of run {run.run_id} is running")
    return tuple(asked)
