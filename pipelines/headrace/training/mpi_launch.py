"""All ranks of all nodes started by one mpirun or srun on the first node."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import SiteError, StepCancelledError
from headrace.recipe.site import Role
from headrace.steps.children import Child, ChildEnd, ChildGroup, log_size, tail
from headrace.storage.atomic import read_record, write_record, write_text
from headrace.storage.layout import StepFolder
from headrace.training.launcher import launcher_command
from headrace.training.records import (
    FailureKind,
    NodeLaunch,
    NodeOutcome,
    NodeReady,
    RankFailure,
)
from headrace.training.watch import GRACE_S, START_S, is_over

_LOOK_S = 0.1
_PATIENCE_S = 3 * GRACE_S
"""Ranks that are to end have this time, before their launcher is ended."""

_SLURM_NAME = "SLURMD_NODENAME"


def run_together(node: NodeReady, role: Role, keep_on: Callable[[], bool]) -> NodeOutcome:
    """Run the ranks of this node as part of one launch of all; see `run_node`.

    The first node starts the launcher when all nodes have their data; the others wait for its end.
    Each rank has a watcher of its own (`placed`), which tells how it ended.

    Args:
        node: This node, with its data.
        role: The site's role that trains.
        keep_on: Called at each look; false stops all ranks.

    Raises:
        SiteError: The node has no such launcher.
        StepCancelledError: The ranks were to end before they were started.
    """
    launch = node.launch
    node = node.model_copy(update={"slurm_name": os.environ.get(_SLURM_NAME, "")})
    write_record(launch.folder.ready(launch.node_index), node)
    watch = _LauncherWatch(launch, keep_on)
    if launch.node_index > 0:
        while not launch.folder.launched.exists() and watch.keep_on():
            time.sleep(_LOOK_S)
        return _outcome(launch, None)
    try:
        return _outcome(launch, _launch(node, role, watch))
    finally:
        write_text(launch.folder.launched, "the launcher of all ranks has ended\n")


class _LauncherWatch:
    """Eyes on the launch as a whole; its ranks have their own.

    Args:
        launch: What is started.
        keep_on: False when this node wants all ranks to end.
    """

    def __init__(self, launch: NodeLaunch, keep_on: Callable[[], bool]) -> None:
        self._launch = launch
        self._keep_on = keep_on
        self._over_since: float | None = None

    def is_over(self) -> bool:
        """Whether the ranks are to end; asks them to."""
        if is_over(self._launch):
            return True
        if self._keep_on():
            return False
        write_text(self._launch.folder.stop, f"{self._launch.node_name} cannot go on")
        return True

    def keep_on(self) -> bool:
        """Whether to wait on: false when ranks that were to end have had the time to."""
        now = time.monotonic()
        if self._over_since is None and self.is_over():
            self._over_since = now
        return self._over_since is None or now - self._over_since < _PATIENCE_S


@dataclass(frozen=True, kw_only=True)
class _LauncherEnd:
    """How the launcher ended."""

    name: str
    end: ChildEnd
    log: Path
    log_start: int

    def failure(self, rank: int, launch: NodeLaunch) -> RankFailure:
        """What is known of a rank whose watcher has not told how it ended."""
        return RankFailure(
            rank=rank,
            node=launch.node_name,
            kind=FailureKind.CRASHED,
            what=f"{self.name} ended with {self.end.cause} and left no word of this rank",
            hint=f"See {self.log}:\n{tail(self.log, self.log_start)}",
            at=self.end.at,
        )


def _launch(node: NodeReady, role: Role, watch: _LauncherWatch) -> _LauncherEnd:
    name = str(role.launcher)
    if shutil.which(name) is None:
        raise SiteError(
            f"There is no program '{name}' on {node.launch.node_name}",
            "Put it on PATH in the role's prologue, or leave out the role's `launcher`.",
        )
    command = launcher_command(_all_ready(node.launch, watch), role, os.environ)
    child = Child(
        name=name,
        command=(sys.executable, "-m", "headrace.processes", "--", *command),
        log=StepFolder(Path(node.launch.step_folder)).logs / f"{name}.log",
        env=role.env,
    )
    log_start = log_size(child.log)
    deadline = time.monotonic() + START_S
    with ChildGroup([child], GRACE_S) as group:
        (end,) = group.supervise(
            lambda: watch.keep_on() and (time.monotonic() < deadline or _all_placed(node.launch))
        )
    return _LauncherEnd(name=name, end=end, log=child.log, log_start=log_start)


def _all_ready(launch: NodeLaunch, watch: _LauncherWatch) -> list[NodeReady]:
    while True:
        found = (
            read_record(launch.folder.ready(index), NodeReady) for index in range(launch.num_nodes)
        )
        nodes = [node for node in found if node is not None]
        if len(nodes) == launch.num_nodes:
            return nodes
        if watch.is_over():
            raise StepCancelledError("The ranks were to end before they were started")
        time.sleep(_LOOK_S)


def _all_placed(launch: NodeLaunch) -> bool:
    return all(launch.folder.placed(rank).exists() for rank in range(launch.world_size))


def _outcome(launch: NodeLaunch, launcher: _LauncherEnd | None) -> NodeOutcome:
    """How the ranks of this node ended; the first node answers for those that left no word."""
    told = (read_record(launch.folder.outcome(rank), NodeOutcome) for rank in launch.ranks)
    known = [outcome for outcome in told if outcome is not None]
    failures = [failure for outcome in known for failure in outcome.failures]
    was_over = any(outcome.stopped for outcome in known) or is_over(launch)
    if launcher is not None and not was_over:
        silent = [r for r in range(launch.world_size) if not launch.folder.outcome(r).exists()]
        failures += [launcher.failure(rank, launch) for rank in silent[:1]]
    return NodeOutcome(
        node=launch.node_name,
        stopped=was_over,
        failures=tuple(failures),
        beats={rank: count for outcome in known for rank, count in outcome.beats.items()},
    )
