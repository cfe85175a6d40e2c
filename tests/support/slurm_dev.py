"""The small real Slurm of `deploy/slurm-dev`, for tests."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import slurm_dev
from slurm_dev_daemons import Daemons

from headrace.leases.batch.commands import LocalCommands
from headrace.leases.batch.slurm import Slurm
from headrace.processes import die_with_parent
from support.waiting import wait_until

LEAVING_S = 60
"""A job must have left the queue so long after its lease."""


@dataclass(frozen=True)
class DevSlurm:
    """A running Slurm with four nodes."""

    config: Path
    """What `SLURM_CONF` must name."""
    daemons: Daemons
    """Its daemons."""

    @property
    def commands(self) -> LocalCommands:
        """Its commands."""
        return LocalCommands({"SLURM_CONF": str(self.config)})

    @property
    def system(self) -> Slurm:
        """Headrace's view of it."""
        return Slurm(self.commands)

    def run(self, *command: str) -> str:
        """Output of one of its commands."""
        answer = self.commands.run(command)
        assert answer.code == 0, answer
        return answer.output

    def queue(self, *options: str) -> list[str]:
        """Ids of the jobs that wait or run."""
        return self.run("squeue", "--noheader", "--format=%i", *options).split()


@pytest.fixture(scope="session")
def dev_slurm() -> Iterator[DevSlurm]:
    """A Slurm of four nodes with two fake GPUs each; its daemons end with the tests."""
    reason = slurm_dev.why_not()
    if reason:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="headrace-slurm-", dir="/tmp"))  # short: sockets in it
    daemons = Daemons(folder, before=lambda: die_with_parent(signal.SIGKILL))
    try:
        yield DevSlurm(slurm_dev.up(daemons).config, daemons)
    finally:
        slurm_dev.down(daemons)
        shutil.rmtree(folder)


@pytest.fixture
def slurm(dev_slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevSlurm]:
    """The Slurm, named by `SLURM_CONF`; the test leaves no job in its queue."""
    monkeypatch.setenv("SLURM_CONF", str(dev_slurm.config))
    yield dev_slurm
    try:  # a job that was cancelled still leaves its nodes for a moment
        wait_until(lambda: not dev_slurm.queue(), LEAVING_S, "an empty queue", poll_s=0.5)
    finally:
        left = dev_slurm.queue()
        if left:
            dev_slurm.run("scancel", *left)
