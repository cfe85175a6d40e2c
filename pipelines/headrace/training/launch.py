"""The commands and environments of a node's ranks, as pure functions."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.steps.children import Child
from headrace.steps.model_process import model_environment, python_module
from headrace.storage.layout import RunFolder, StepFolder
from headrace.training.records import NodeLaunch, RankSpec


def rank_name(rank: int) -> str:
    """Name of a rank's process."""
    return f"rank {rank}"


def rank_spec(
    launch: NodeLaunch, rank: int, dataset: str, fingerprint: str, arriving: bool = False
) -> RankSpec:
    """Input of a rank.

    Args:
        launch: The launch.
        rank: The rank.
        dataset: Folder of the dataset on the node.
        fingerprint: Hash of recipe and dataset.
        arriving: Whether the folder is still being filled.
    """
    return RankSpec(
        run_folder=launch.run_folder,
        launch_folder=str(launch.folder.path),
        token=f"{Path(launch.step_folder).name}-{launch.number}-{launch.master_port}",
        dataset=dataset,
        source=launch.dataset,
        skipped=launch.skipped,
        arriving=arriving,
        group=launch.group,
        fingerprint=fingerprint,
        rank=rank,
        world_size=launch.world_size,
        num_nodes=launch.num_nodes,
        meeting=_meeting(launch),
        secret=launch.secret,
        resume=launch.resume,
        stop_at=launch.stop_at,
    )


def rank_children(
    launch: NodeLaunch, recipe: Recipe, role: Role, dataset: str, interface: str | None
) -> tuple[Child, ...]:
    """The processes of a node's ranks.

    Args:
        launch: The launch.
        recipe: The resolved recipe.
        role: The site's role that trains.
        dataset: Folder of the dataset on the node.
        interface: Network interface of the node's address, None to let the library choose.
    """
    logs = StepFolder(Path(launch.step_folder)).logs
    return tuple(
        Child(
            name=rank_name(rank),
            command=_command(launch, recipe, rank),
            env={
                **_networks(interface),
                **model_environment(role),
                **torchrun_environment(launch, rank, recipe.train.max_restarts),
                **(_script_environment(launch, dataset) if recipe.train.script else {}),
            },
            log=logs / f"rank-{rank}.log",
        )
        for rank in launch.ranks
    )


def torchrun_environment(launch: NodeLaunch, rank: int, max_restarts: int) -> dict[str, str]:
    """The variables that torchrun gives a rank.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    world_size = str(launch.world_size)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - launch.ranks.start),
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": str(launch.ranks_per_node),
        "GROUP_RANK": str(launch.node_index),
        "GROUP_WORLD_SIZE": str(launch.num_nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": launch.master_address,
        "MASTER_PORT": str(launch.master_port),
        "TORCHELASTIC_RUN_ID": Path(launch.run_folder).name,
        "TORCHELASTIC_RESTART_COUNT": str(launch.number - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def interface_of(address: str, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """Name of the network interface that has an address.

    Args:
        address: IP address of the node.
        interfaces: Addresses by interface.
    """
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    for name, found in interfaces.items():
        if any(str(wanted) == each.partition("%")[0] for each in found):
            return name
    return None


def _command(launch: NodeLaunch, recipe: Recipe, rank: int) -> tuple[str, ...]:
    if recipe.train.script is None:
        return python_module("headrace.training.rank", str(launch.folder.spec(rank)))
    script = (sys.executable, "-u", recipe.train.script, *recipe.train.args)
    return python_module("headrace.processes", "--", *script)


def _meeting(launch: NodeLaunch) -> str:
    if launch.num_nodes == 1:
        return str(launch.folder.meeting)
    return f"{launch.master_address}:{launch.master_port}"


def _networks(interface: str | None) -> dict[str, str]:
    if interface is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


def _script_environment(launch: NodeLaunch, dataset: str) -> dict[str, str]:
    run = RunFolder(Path(launch.run_folder))
    return {
        "HEADRACE_DATASET": dataset,
        "HEADRACE_CHECKPOINTS": str(run.checkpoints),
        "HEADRACE_RUN_FOLDER": str(run.path),
        **({"HEADRACE_STOP_AT": f"{launch.stop_at:.0f}"} if launch.stop_at else {}),
    }
