"""Which batch system a role names, chosen once from a table."""

from __future__ import annotations

from headrace.errors import SiteError, nearest
from headrace.leases.batch.commands import LocalCommands
from headrace.leases.batch.slurm import Slurm
from headrace.leases.batch.system import BatchSystem
from headrace.recipe.site import Role

_SYSTEMS = {"slurm": Slurm}

# seconds since the epoch: the commands may run in another time zone than this process
_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}


def system_of(role: Role) -> BatchSystem:
    """The batch system that a role of a site names; its commands run on this machine.

    Raises:
        SiteError: There is none of that name.
    """
    if role.backend not in _SYSTEMS:
        raise SiteError(
            f"There is no batch system '{role.backend}'", nearest(role.backend, _SYSTEMS)
        )
    system, config = _SYSTEMS[role.backend], role.batch.config
    environment = {system.config_variable: config} if config else {}
    return system(LocalCommands(_ENVIRONMENT | environment), config or "")
