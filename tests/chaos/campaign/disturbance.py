"""Phases of a run, by the files of its leases; what waits for the moment of a trial and strikes."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from chaos.campaign.processes import Processes, describe, shared_memory
from chaos.campaign.trials import PHASES, Trial
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.record import Record
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


Lengths = Mapping[str, float]
"""Seconds by `phase/role`: how long such processes lived in that phase of the reference."""


class Hit(Record):
    """What was really hit."""

    phase: str
    """Phase of the run then."""
    role: str
    """Kind of process."""
    process: str
    """The process, for people."""
    after_s: float
    """Seconds after the run's start."""


class Disturbance:
    """The disturbance of one run.

    Args:
        trial: What is to be done.
        spans: What the moment is a part of.
        home: Home of the run.
        processes: Its processes.
    """

    def __init__(self, trial: Trial, spans: Lengths, home: Path, processes: Processes) -> None:
        self._trial = trial
        self._wait_s = trial.moment * spans.get(f"{trial.phase}/{trial.role}", 0.0)
        self._home = home
        self._processes = processes
        self._began = time.monotonic()
        self._seen: float | None = None
        self._victim: psutil.Process | None = None
        self._goes_on_at: float | None = None
        self.hit: Hit | None = None
        """What was hit; None before."""
        self.memory: frozenset[Path] = frozenset()
        """Shared memory that the run's processes had then."""

    @property
    def is_over(self) -> bool:
        """Whether nothing stands still any more."""
        return self._goes_on_at is None

    def tick(self) -> None:
        """Look whether it is time for something; to be called often."""
        if self.hit is None:
            self._approach()
        elif self._goes_on_at is not None and time.monotonic() >= self._goes_on_at:
            self.let_go()

    def let_go(self) -> None:
        """Let what stands still go on."""
        if self._victim is not None and self._goes_on_at is not None:
            _send(self._victim, signal.SIGCONT)
        self._goes_on_at = None

    def _approach(self) -> None:
        phase = phase_of(self._home)
        if phase != self._trial.phase and self._seen is None:
            return
        living = self._processes.living()
        now = time.monotonic()
        victims = [process for process, role in living.items() if role == self._trial.role]
        if victims and self._seen is None:
            self._seen = now
        if self._seen is None or now - self._seen < self._wait_s:
            return
        candidates = victims or list(living)
        if candidates:
            victim = candidates[int(self._trial.which * len(candidates))]
            self.memory = shared_memory(living)
            self._strike(victim, living[victim], phase)

    def _strike(self, victim: psutil.Process, role: str, phase: str) -> None:
        told = describe({victim: role})[0]
        is_kill = self._trial.signal == "kill -9"
        if not _send(victim, signal.SIGKILL if is_kill else signal.SIGSTOP):
            return
        now = time.monotonic()
        self._victim = victim
        self._goes_on_at = None if is_kill else now + self._trial.halt_s
        self.hit = Hit(phase=phase, role=role, process=told, after_s=now - self._began)


def _send(process: psutil.Process, number: signal.Signals) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True
