"""In which phase a run is, from the files of its leases; how long its processes live in each."""

from __future__ import annotations

import time
from pathlib import Path

from chaos.campaign.processes import Processes
from chaos.campaign.trials import PHASES
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult, StepSpec


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


_EVERY_S = 0.2


class Spans:
    """Notes when each kind of process is there.

    Args:
        home: Home of the run.
        processes: Its processes.
    """

    def __init__(self, home: Path, processes: Processes) -> None:
        self._home = home
        self._processes = processes
        self._seen: dict[str, tuple[float, float]] = {}
        self._next = 0.0

    def tick(self) -> None:
        """Look now, unless it was looked just before; to be called often."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        phase = phase_of(self._home)
        for role in set(self._processes.living().values()):
            name = f"{phase}/{role}"
            self._seen[name] = (self._seen.get(name, (now, now))[0], now)

    def lengths(self) -> dict[str, float]:
        """Seconds from first to last sight, by `phase/role`."""
        return {name: last - first for name, (first, last) in self._seen.items()}
