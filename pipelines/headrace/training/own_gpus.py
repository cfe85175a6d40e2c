"""GPUs of a node that no queue gives out, for a training that is no trial of a suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.clusters.gpu_reservations import ReservationFile
from headrace.clusters.gpus import visible_gpus
from headrace.files.layout import RunFolder, StepFolder
from headrace.processes.identity import MEMORY
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.training.launch_records import NodeLaunch
from headrace.training.watch_ranks import is_unwanted


@contextmanager
def own_gpus(launch: NodeLaunch, recipe: Recipe, role: Role) -> Iterator[Role]:
    """The role that trains, with a GPU for each rank, which it has while the block runs.

    It waits for them before. Nothing is claimed where a queue gives out machines, for ranks on
    several nodes, which could wait for each other, and for a trial, which has its part already.

    Raises:
        StepCancelledError: Nobody wants them any more.
    """
    mask, gpus = visible_gpus()
    is_given = not role.shares_machines or launch.num_nodes > 1 or MEMORY in role.env
    if is_given or role.launcher or recipe.trainer.accelerator not in ("auto", "gpu") or not gpus:
        yield role
        return
    num_ranks = recipe.train.ranks_per_node or role.ranks_per_node
    names = {gpu.identity: gpu.name for gpu in gpus}
    with ReservationFile(RunFolder(Path(launch.run_folder)).run_id, tuple(names), num_ranks) as own:
        held = own.wait(StepFolder(Path(launch.step_folder)), lambda: not is_unwanted(launch))
        told = {mask: ",".join(names[gpu] for gpu in held)}
        yield role.model_copy(update={"env": {**role.env, **told}})
