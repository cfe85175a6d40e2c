"""Looking at steps and leases without touching anything: what triggers and views do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.leases import client
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


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a step and its lease stand."""

    final: bool
    """Whether the step has ended, or its lease has and so it never will."""
    status: StepStatus
    lease: LeaseLook


def look_lease(lease_folder: Path, lost_after_s: float) -> LeaseLook:
    """See how a lease stands; reads files only."""
    folder = LeaseFolder(lease_folder)
    info = client.info(folder)
    state = client.state(folder, lost_after_s)
    why = "" if state.is_active else client.why_ended(folder)
    return LeaseLook(state=state, dashboard_url=info.dashboard_url if info else "", why=why)


def look(lease_folder: Path, step_folder: Path, lost_after_s: float) -> Look:
    """See how a step stands; reads files only."""
    folder = StepFolder(step_folder)
    lease = look_lease(lease_folder, lost_after_s)
    ended = mailbox.outcome(folder) is not None
    return Look(
        final=ended or not lease.state.is_active,
        status=mailbox.status(folder),
        lease=lease,
    )
