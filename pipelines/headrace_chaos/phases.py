"""In which phase a run is, from the files of its leases; the ledger is not asked."""

from __future__ import annotations

from pathlib import Path

from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult, StepSpec
from headrace_chaos.trials import PHASES


def phase_of(home: Path) -> str:
    """The phase of the only run of a home."""
    done = {name for lease in _leases(home) for name in _succeeded(lease)}
    return next((phase for phase in PHASES if phase not in done), PHASES[-1])


def _leases(home: Path) -> list[LeaseFolder]:
    folder = SiteFolder(home).leases
    return [LeaseFolder(path) for path in folder.iterdir()] if folder.is_dir() else []


def _succeeded(lease: LeaseFolder) -> list[str]:
    names = []
    for step in mailbox.submitted(lease):
        spec, result = read_record(step.spec, StepSpec), read_record(step.result, StepResult)
        if spec is not None and result is not None and result.state is StepState.SUCCEEDED:
            names.append(spec.name)
    return names
