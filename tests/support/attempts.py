"""Starting a step as the drivers do, up to the attempt that runs."""

from __future__ import annotations

from headrace.execution.decisions import End, Memory, RunningAttempt, decide
from headrace.execution.step_attempts import act, conclude, observe
from headrace.runs.planned_steps import step_of
from headrace.runs.runs import Run
from headrace.steps.mailbox import StepResult


def start_step(run: Run, name: str) -> RunningAttempt | StepResult:
    """Find, collect, re-attach, and only then submit; what is not possible now is raised."""
    step, memory = step_of(run.recipe, run.request.kind, name), Memory()
    while memory.ticket is None:
        action = decide(observe(run, step, memory), memory)
        if isinstance(action, End):
            return conclude(run, step, action)
        memory = act(run, step, action, memory)
        if memory.error is not None:
            raise memory.error
    return memory.ticket
