"""Why a run ended without success, by its rows of the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.ledger.rows import AttemptRecord, LeaseRecord, RunRecord
from headrace.states import LeaseState, StepState


def why_failed(record: RunRecord, attempts: Sequence[AttemptRecord]) -> AttemptRecord | None:
    """The attempt by which a run ended without success; None when there is none."""
    if not record.state.is_final or record.state is StepState.SUCCEEDED or not attempts:
        return None
    return None if attempts[-1].state is StepState.SUCCEEDED else attempts[-1]


def why_no_lease(
    record: RunRecord, attempts: Sequence[AttemptRecord], leases: Sequence[LeaseRecord]
) -> str:
    """Why a run failed that got no lease for its next step; empty when a step tells why.

    Args:
        record: The run.
        attempts: All at its steps, as they were asked for.
        leases: Its leases, the newest first.
    """
    is_well = not record.state.is_final or record.state is StepState.SUCCEEDED
    if is_well or not leases or why_failed(record, attempts):
        return ""
    return leases[0].why_ended if leases[0].state is LeaseState.FAILED else ""
