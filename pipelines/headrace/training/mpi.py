"""All ranks of all nodes started by one mpirun or srun on the first node.

For each rank the launcher starts `python -m headrace.training.mpi LAUNCH`, which runs and watches
the rank and writes its outcome to a file.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from headrace.errors import SiteError, StepCancelledError, StepError
from headrace.files.atomic import is_there, read_record, write_record, write_text
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder
from headrace.processes.children import GRACE_S, Child, ChildGroup
from headrace.processes.identity import begin_child
from headrace.recipe.site import Role
from headrace.site_secrets import secrets_of
from headrace.steps.context import resolved
from headrace.steps.model_process import python_module
from headrace.training.launch import LaunchedRank, launcher_command, placement, rank_children
from headrace.training.launch_records import (
    FailureKind,
    LaunchFolder,
    NodeLaunch,
    NodeOutcome,
    NodeReady,
    RankFailure,
)
from headrace.training.watch_ranks import START_S, is_over, run_watched, tell_failure

_LOOK_S = 0.1
_PATIENCE_S = 3 * GRACE_S
"""Ranks that are to end have this time, before their launcher is ended."""


def run_together(node: NodeReady, role: Role) -> NodeOutcome:
    """Run the ranks of this node as part of one launch of all; see `run_node`.

    The first node starts the launcher when all nodes have their data; the others wait for its end.
    """
    launch = node.launch
    watch = _LauncherWatch(launch)
    if launch.node_index > 0:
        while not is_there(launch.folder.launched) and watch.keep_on():
            time.sleep(_LOOK_S)
        return _outcome(launch)
    try:
        return _outcome(launch, _launch(node, role, watch))
    finally:
        write_text(launch.folder.launched, "the launcher of all ranks has ended\n")


class _LauncherWatch:
    """Watches the launch as a whole, while each rank is watched where it runs."""

    def __init__(self, launch: NodeLaunch) -> None:
        self._launch = launch
        self._over_since: float | None = None

    def keep_on(self) -> bool:
        """Whether to wait on: false when ranks that were to end have had the time to."""
        now = time.monotonic()
        if self._over_since is None and is_over(self._launch):
            self._over_since = now
        return self._over_since is None or now - self._over_since < _PATIENCE_S


def _launch(node: NodeReady, role: Role, watch: _LauncherWatch) -> RankFailure:
    """Return the failure of a rank without an outcome, after the launcher's end."""
    launch, name = node.launch, str(role.launcher)
    if shutil.which(name) is None:
        raise SiteError(
            f"There is no program '{name}' on {launch.node_name}",
            "Put it on PATH in the role's prologue, or leave out the role's `launcher`.",
        )
    command = launcher_command(_all_ready(launch, watch), role, os.environ)
    child = Child(
        name=name,
        command=python_module("headrace.processes", "--", *command),
        log=StepFolder(Path(launch.step_folder)).logs / f"{name}.log",
        env=role.env,
    )
    placed = [launch.folder.placed(rank) for rank in range(launch.world_size)]
    deadline = time.monotonic() + START_S
    with ChildGroup([child]) as group:
        (end,) = group.supervise(
            lambda: watch.keep_on() and (time.monotonic() < deadline or all(map(is_there, placed)))
        )
    return RankFailure(
        rank=0,
        node=launch.node_name,
        kind=FailureKind.CRASHED,
        what=f"{name} ended with {end.cause} and left no word of this rank",
        hint=f"See {child.log}:\n{end.last_words}",
        at=end.at,
    )


def _all_ready(launch: NodeLaunch, watch: _LauncherWatch) -> list[NodeReady]:
    while True:
        found = [read_record(launch.folder.ready(at), NodeReady) for at in range(launch.num_nodes)]
        nodes = [node for node in found if node is not None]
        if len(nodes) == launch.num_nodes:
            return nodes
        if is_over(launch):
            raise StepCancelledError("The ranks were to end before they were started")
        time.sleep(_LOOK_S)


def _outcome(launch: NodeLaunch, of_silent: RankFailure | None = None) -> NodeOutcome:
    """How the ranks of this node ended; the first node answers for those that left no word."""
    written = (read_record(launch.folder.outcome(rank), NodeOutcome) for rank in launch.ranks)
    known = [outcome for outcome in written if outcome is not None]
    failures = [failure for outcome in known for failure in outcome.failures]
    was_over = any(outcome.stopped for outcome in known) or is_over(launch)
    if of_silent is not None and not was_over:
        silent = [r for r in range(launch.world_size) if not is_there(launch.folder.outcome(r))]
        failures += [of_silent.model_copy(update={"rank": rank}) for rank in silent[:1]]
    return NodeOutcome(
        node=launch.node_name,
        stopped=was_over,
        failures=tuple(failures),
        beats={rank: count for outcome in known for rank, count in outcome.beats.items()},
    )


def _run_placed(folder: LaunchFolder, place: LaunchedRank) -> None:
    """Run the rank of a place to its end, and write down how it ended."""
    node = _node_of(folder, place.rank)
    launch = node.launch
    _check(launch, place)
    recipe, site = resolved(RunFolder(Path(launch.run_folder)))
    role = site.roles[recipe.train.role]
    # launchers pass on few variables, and these to no other node
    os.environ.update(secrets_of(LeaseFolder(Path(launch.step_folder).parents[1])))
    children = rank_children(node, recipe, role)
    child = children[place.rank - launch.ranks.start]
    write_text(folder.placed(place.rank), f"{os.getpid()}\n")
    outcome = run_watched(launch, [child], recipe.train.hang_timeout)
    write_record(folder.outcome(place.rank), outcome)
    if outcome.failures:
        tell_failure(launch, outcome)  # last: it ends the watchers of the other ranks


def _node_of(folder: LaunchFolder, rank: int) -> NodeReady:
    first = read_record(folder.ready(0), NodeReady)
    if first is None:
        raise StepError(f"{folder.ready(0)} does not exist")
    node = read_record(folder.ready(rank // first.launch.ranks_per_node), NodeReady)
    if node is None:
        raise StepError(f"Rank {rank} belongs to no node of this launch")
    return node


def _check(launch: NodeLaunch, place: LaunchedRank) -> None:
    if place.world_size not in (None, launch.world_size):
        raise StepError(
            f"The launcher says that there are {place.world_size} ranks, not {launch.world_size}",
            "Correct `launcher_options` of the role.",
        )
    local_rank = place.rank - launch.ranks.start
    # nodes of a local gang are one host, where the local rank is the rank
    if place.local_rank not in (None, local_rank, place.rank):
        raise StepError(
            f"The launcher has made rank {place.rank} the local rank {place.local_rank} of its "
            f"node, not {local_rank}: the ranks of a node must follow one another",
            "Correct `launcher_options` of the role.",
        )


def main(arguments: list[str]) -> int:
    """Run the entry point; return 0 also if the rank failed, because a file says so.

    On another code the launcher would kill the watchers of all other ranks before they write their
    outcomes.
    """
    begin_child()
    _run_placed(LaunchFolder(Path(arguments[0])), placement(os.environ))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
