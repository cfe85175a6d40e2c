"""Claim GPUs of a node without a queue, for a training outside of suites."""

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
from headrace.training.watch_ranks import is_obsolete


@contextmanager
def own_gpus(launch: NodeLaunch, recipe: Recipe, role: Role) -> Iterator[Role]:
    """Hold a GPU for each rank while the block runs; yield the role with these GPUs.

    Waits for the GPUs first. None are claimed on machines of a queue, for ranks on several nodes,
    which could wait for each other, and for a trial, whose GPUs its suite has claimed.

    Raises:
        StepCancelledError: The step was cancelled while it waited.
    """
    mask, gpus = visible_gpus()
    is_given = not role.shares_machines or launch.num_nodes > 1 or MEMORY in role.env
    if is_given or role.launcher or recipe.trainer.accelerator not in ("auto", "gpu") or not gpus:
        yield role
        return
    num_ranks = recipe.train.ranks_per_node or role.ranks_per_node
    names = {gpu.identity: gpu.name for gpu in gpus}
    with ReservationFile(RunFolder(Path(launch.run_folder)).run_id, tuple(names), num_ranks) as own:
        held = own.wait(StepFolder(Path(launch.step_folder)), lambda: not is_obsolete(launch))
        variables = {**role.env, mask: ",".join(names[gpu] for gpu in held)}
        yield role.model_copy(update={"env": variables})
