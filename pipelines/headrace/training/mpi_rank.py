"""Starts and watches one rank where mpirun or srun says: `… headrace.training.mpi_rank LAUNCH`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from headrace.errors import StepError
from headrace.processes import die_with_parent
from headrace.steps.context import resolved
from headrace.storage.atomic import read_record, write_record, write_text
from headrace.storage.layout import RunFolder
from headrace.training.launch import rank_children
from headrace.training.launch_folder import LaunchFolder
from headrace.training.placement import Placement, placement
from headrace.training.records import NodeReady
from headrace.training.watch import run_watched, tell_failure


def run_placed(folder: LaunchFolder, place: Placement) -> None:
    """Run the rank of this place to its end, and write down how it ended.

    Args:
        folder: The launch.
        place: What the launcher says.

    Raises:
        StepError: The launcher has placed this rank otherwise than headrace has asked it to.
    """
    node = _node_of(folder, place.rank)
    launch = node.launch
    _check(node, place)
    recipe, site = resolved(RunFolder(Path(launch.run_folder)))
    role = site.roles[recipe.train.role]
    children = rank_children(launch, recipe, role, node.dataset, node.interface)
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
    index = rank // first.launch.ranks_per_node
    node = read_record(folder.ready(index), NodeReady)
    if node is None:
        raise StepError(f"Rank {rank} belongs to no node of this launch")
    return node


def _check(node: NodeReady, place: Placement) -> None:
    launch = node.launch
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
    """Entry point; 0 also when the rank failed, as that is told by files.

    A launcher that sees a failure kills the watchers of all other ranks before they can tell how
    those ended.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    die_with_parent()
    run_placed(LaunchFolder(Path(arguments[0])), placement(os.environ))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
