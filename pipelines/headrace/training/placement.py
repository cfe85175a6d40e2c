"""Which rank a process is that mpirun or srun has started, from its environment; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import StepError


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What a launcher tells a process about itself."""

    rank: int
    """Rank, from 0."""
    world_size: int | None
    """Number of ranks; None where the launcher does not tell."""
    local_rank: int | None
    """Rank among those of the same node, from 0; None where the launcher does not tell."""


_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
"""Rank, world size and local rank. Slurm's come last: mpirun inside a Slurm job leaves them as they
were. Sources: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html,
https://slurm.schedmd.com/srun.html, PMI_* and MPI_LOCALRANKID of Hydra (MPICH, Intel MPI)."""


def placement(environment: Mapping[str, str]) -> Placement:
    """The place of the process with that environment.

    Raises:
        StepError: No launcher has left its variables there.
    """
    for rank, world_size, local_rank in _VARIABLES:
        if rank in environment:
            return Placement(
                rank=int(environment[rank]),
                world_size=_number(environment.get(world_size)),
                local_rank=_number(environment.get(local_rank)),
            )
    names = ", ".join(names[0] for names in _VARIABLES)
    raise StepError(
        f"The launcher of this rank has set none of {names}",
        "Set the role's `launcher` to one that does, or leave it out.",
    )


def _number(text: str | None) -> int | None:
    return int(text) if text else None
