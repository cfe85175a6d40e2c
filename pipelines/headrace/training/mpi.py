"""All ranks of all nodes started by one mpirun or srun, which the driver runs.

It is outside of containers, where these programs are. For each rank the launcher starts
`python -m headrace.training.mpi LAUNCH`, in the site's container if there is one, which runs and
watches the rank and writes its outcome to a file.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from headrace.clusters import lease_client
from headrace.clusters.containers import environment, in_container, is_inside
from headrace.clusters.lease_records import service_variables
from headrace.errors import SiteError, StepError
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


def run_together(launch: NodeLaunch) -> NodeOutcome:
    """Wait for the end of the launcher of all ranks; return how those of this node ended."""
    keep_on = _patience(launch)
    while not is_there(launch.folder.launched) and keep_on():
        time.sleep(_LOOK_S)
    written = (read_record(launch.folder.outcome(rank), NodeOutcome) for rank in launch.ranks)
    known = [outcome for outcome in written if outcome is not None]
    return NodeOutcome(
        node=launch.node_name,
        stopped=any(outcome.stopped for outcome in known) or is_over(launch),
        failures=tuple(failure for outcome in known for failure in outcome.failures),
        beats={rank: count for outcome in known for rank, count in outcome.beats.items()},
    )


@contextmanager
def launching(launch: NodeLaunch, role: Role, lease: LeaseFolder) -> Iterator[None]:
    """Run the role's launcher, if it has one, when all nodes are ready; `launch` is the first's."""
    if role.launcher is None:
        yield
        return
    with ThreadPoolExecutor(1, "headrace-launcher") as pool:
        launcher = pool.submit(_launch, launch, role, lease)
        yield
        launcher.result()


def _patience(launch: NodeLaunch) -> Callable[[], bool]:
    """Return whether to wait on: ranks that are to end have time to, watched where they run."""
    until_s = math.inf

    def keep_on() -> bool:
        nonlocal until_s
        if until_s == math.inf and is_over(launch):
            until_s = time.monotonic() + _PATIENCE_S
        return time.monotonic() < until_s

    return keep_on


def _launch(launch: NodeLaunch, role: Role, lease: LeaseFolder) -> None:
    name = str(role.launcher)
    try:
        if shutil.which(name) is None:
            raise SiteError(
                f"There is no program '{name}' on {launch.node_name}",
                "Put it on PATH in the role's prologue, or leave out the role's `launcher`.",
            )
        if nodes := _all_ready(launch):
            _run_launcher(nodes, role, lease)
    finally:
        write_text(launch.folder.launched, "the launcher of all ranks has ended\n")


def _run_launcher(nodes: Sequence[NodeReady], role: Role, lease: LeaseFolder) -> None:
    """Run the launcher to its end; write the outcome of a rank that has written none."""
    launch, name, keep_on = nodes[0].launch, str(role.launcher), _patience(nodes[0].launch)
    rank = python_module("headrace.training.mpi", str(launch.folder.path))
    if role.batch.container is not None and not is_inside():
        rank = in_container(lease, lease_client.spec(lease), ("-u", "-m", *rank[-2:]))
    env = {**environment(), **role.env}
    command = launcher_command(nodes, role, env, rank)
    child = Child(
        name=name,
        command=python_module("headrace.processes", "--", *command),
        log=StepFolder(Path(launch.step_folder)).logs / f"{name}.log",
        env=env,
    )
    placed = [launch.folder.placed(rank) for rank in range(launch.world_size)]
    deadline = time.monotonic() + START_S
    with ChildGroup([child]) as group:
        (end,) = group.supervise(
            lambda: keep_on() and (time.monotonic() < deadline or all(map(is_there, placed)))
        )
    silent = [r for r in range(launch.world_size) if not is_there(launch.folder.outcome(r))]
    if silent and not is_over(launch):
        node = nodes[silent[0] // launch.ranks_per_node].launch.node_name
        failure = RankFailure(
            rank=silent[0],
            node=node,
            kind=FailureKind.CRASHED,
            what=f"{name} ended with {end.cause} and left no word of this rank",
            hint=f"See {child.log}:\n{end.last_words}",
            at=end.at,
        )
        outcome = NodeOutcome(node=node, stopped=False, failures=(failure,))
        write_record(launch.folder.outcome(silent[0]), outcome)


def _all_ready(launch: NodeLaunch) -> list[NodeReady]:
    """Wait for the data of all nodes; return none if the launch is over before."""
    while not is_over(launch):
        found = [read_record(launch.folder.ready(at), NodeReady) for at in range(launch.num_nodes)]
        nodes = [node for node in found if node is not None]
        if len(nodes) == launch.num_nodes:
            return nodes
        time.sleep(_LOOK_S)
    return []


def _run_placed(folder: LaunchFolder, place: LaunchedRank) -> None:
    """Run the rank of a place to its end, and write down how it ended."""
    node = _node_of(folder, place.rank)
    launch = node.launch
    _check(launch, place)
    recipe, site = resolved(RunFolder(Path(launch.run_folder)))
    role = site.roles[recipe.train.role]
    # launchers pass on few variables, and these to no other node
    lease = LeaseFolder(Path(launch.step_folder).parents[1])
    os.environ.update(secrets_of(lease) | service_variables(lease))
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
