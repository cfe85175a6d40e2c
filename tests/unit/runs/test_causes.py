"""The attempt by which a run failed, and only for runs that did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.ledger.ledger import open_ledger
from headrace.runs.causes import why_failed
from headrace.states import StepState
from support.runs import attempt_row_of, lease_on_disk, make_run


@pytest.mark.parametrize(
    ("state", "last", "is_told"),
    [
        (StepState.FAILED, StepState.FAILED, True),
        (StepState.FAILED, StepState.SUCCEEDED, False),
        (StepState.RUNNING, StepState.FAILED, False),
        (StepState.SUCCEEDED, StepState.LOST, False),
    ],
)
def test_why_a_run_failed(state: StepState, last: StepState, is_told: bool) -> None:
    run = make_run()
    row = attempt_row_of(run, "pack", lease_on_disk(run), state=last)
    record = replace(open_ledger().run(run.run_id), state=state)
    assert why_failed(record, [row]) == (row if is_told else None)
