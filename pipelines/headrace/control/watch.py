"""Looking at steps and leases without changing them: what triggers and views do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.leases import client
from headrace.leases.second_look import sure_state
from headrace.states import LeaseState
from headrace.steps import mailbox
from headrace.steps.records import StepStatus
from headrace.storage.layout import LeaseFolder, StepFolder


@dataclass(frozen=True, kw_only=True)
class LeaseLook:
    """How a lease stands."""

    state: LeaseState
    dashboard_url: str
    why: str
    """Why it ended; empty while it lives."""
    waits_for: str = ""
    """What it waits for in a queue; empty when it does not wait, or there is no queue."""
    is_refused: bool = False
    """Whether its batch system will never start it: asking again is vain."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a step and its lease stand."""

    final: bool
    """Whether the step has ended, or its lease has and so it never will."""
    status: StepStatus
    lease: LeaseLook


def look_lease(lease_folder: Path, lost_after_s: float, *, twice: bool = False) -> LeaseLook:
    """See how a lease stands; reads files, and asks the queue when the site's board is too old.

    Args:
        lease_folder: The lease.
        lost_after_s: Seconds without a heartbeat after which it counts as lost.
        twice: Look a second time at a silent one, which takes some seconds; see `sure_state`.
    """
    folder = LeaseFolder(lease_folder)
    info = client.info(folder)
    state = (sure_state if twice else client.state)(folder, lost_after_s)
    return LeaseLook(
        state=state,
        dashboard_url=info.dashboard_url if info else "",
        why="" if state.is_active else client.why_ended(folder),
        waits_for=client.waiting_for(folder) if state.is_active else "",
        is_refused=state is LeaseState.FAILED and client.is_refused(folder),
    )


def look(lease_folder: Path, step_folder: Path, lost_after_s: float) -> Look:
    """See how a step and its lease stand."""
    folder = StepFolder(step_folder)
    lease = look_lease(lease_folder, lost_after_s)
    ended = mailbox.outcome(folder) is not None
    return Look(
        final=ended or not lease.state.is_active,
        status=mailbox.status(folder),
        lease=lease,
    )
