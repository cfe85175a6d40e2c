"""The small real Slurm of `deploy/slurm-dev`, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import slurm_dev
from slurm_dev_daemons import Daemons
from slurm_dev_files import Shape

from headrace.batch.commands import LocalCommands
from headrace.batch.slurm import Slurm, node_names
from headrace.processes.identity import die_with_parent
from support import far_folder
from support.leftovers import unmarked
from support.waiting import wait_until

LEAVING_S = 60
"""A job must have left the queue so long after its lease."""


@dataclass(frozen=True)
class DevSlurm:
    """A running Slurm."""

    shape: Shape
    """What it consists of."""
    daemons: Daemons
    """Its daemons."""

    @property
    def config(self) -> Path:
        """What `SLURM_CONF` must name."""
        return self.shape.config

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

    def nodes_of(self, job_id: str) -> list[str]:
        """Names of the nodes of a job."""
        return node_names(
            self.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%N").strip()
        )

    def states(self) -> dict[str, str]:
        """State of each node in Slurm's words, as in `idle`, `mixed`, `down*`."""
        lines = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
        return dict(line.split() for line in lines.splitlines())

    def set_node(self, name: str, state: str) -> None:
        """Do to a node what an administrator does: `down`, `drain`."""
        self.run("scontrol", "update", f"nodename={name}", f"state={state}", "reason=test")

    def restart_controller(self) -> None:
        """Start the controller, unless it runs."""
        if "slurmctld" not in {each.name for each in self.daemons.all if each.is_alive}:
            with unmarked():
                slurm_dev.start_controller(self.shape, self.daemons)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let the controller answer nothing inside the context."""
        (pid,) = [each.pid for each in self.daemons.all if each.name == "slurmctld"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def heal(self) -> None:
        """Bring all daemons and nodes back."""
        self.restart_controller()
        alive = {each.name for each in self.daemons.all if each.is_alive}
        for name in self.shape.node_names:
            if slurm_dev.node_daemon(name) not in alive:
                with unmarked():
                    slurm_dev.start_node(self.shape, self.daemons, name)
        wait_until(self._is_whole, LEAVING_S, "all nodes to be idle", poll_s=0.5)

    def resume_nodes(self) -> None:
        """Undo what was done to nodes; one that is down may come back by itself just now."""
        for name, state in self.states().items():
            if state.startswith(("down", "drain")):
                self.commands.run(("scontrol", "update", f"nodename={name}", "state=resume"))

    def _is_whole(self) -> bool:
        self.resume_nodes()
        return set(self.states().values()) == {"idle"}

    def queue(self, *options: str) -> list[str]:
        """Ids of the jobs that wait or run."""
        return self.run("squeue", "--noheader", "--format=%i", *options).split()


@contextmanager
def running(*, is_far: bool = False, **shape_keys: Any) -> Iterator[DevSlurm]:
    """Run a Slurm whose daemons end with this process.

    Args:
        is_far: Whether its nodes have the files of a `far_folder` in the Slurm's folder.
        shape_keys: Fields of its `Shape`.
    """
    reason = slurm_dev.why_not()
    if reason:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="headrace-slurm-", dir="/tmp"))  # short: sockets in it
    if is_far:
        shape_keys["node_command"] = far_folder.node_command(folder)
    daemons = Daemons(folder, before=lambda: die_with_parent(signal.SIGKILL))
    try:
        yield DevSlurm(slurm_dev.up(daemons, **shape_keys), daemons)
    finally:
        slurm_dev.down(daemons)
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def dev_slurm() -> Iterator[DevSlurm]:
    """A Slurm of four nodes with two fake GPUs each; its daemons end with the tests."""
    with running() as started:
        yield started


@pytest.fixture(scope="session")
def second_slurm() -> Iterator[DevSlurm]:
    """Another Slurm, of two nodes whose shared folder is `far_folder.mounted`."""
    with running(is_far=True, cluster="far", node_prefix="far", nodes=2, cpus=2) as started:
        yield started


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
