"""Where the commands of a role's batch system run: here, as another account, on a login node."""

from __future__ import annotations

import os
from typing import Protocol

from headrace.batch.commands import Commands, LocalCommands, SudoCommands
from headrace.batch.ssh import SshCommands
from headrace.recipe.site import Role
from headrace.recipe.unix_accounts import account

# seconds since the epoch: the commands may run in another time zone than this process
_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}


class Variables(Protocol):
    """Environment variables of a batch system, see `BatchSystem`."""

    config_variable: str
    programs_variable: str
    job_variable: str
    job_variables: tuple[str, ...]


def queue_of(role: Role) -> str:
    """Return the identifier of a role's queue; empty for the machine's own."""
    login, config = role.batch.login, role.batch.config
    address = login and f"{login.host}:{login.port or ''}"
    return " ".join(part for part in (address, config) if part)


def commands_of(system: Variables, role: Role, timeout_s: float) -> Commands:
    """Return the runner of the commands of a role's batch system."""
    config, login = role.batch.config, role.batch.login
    environment = _ENVIRONMENT | ({system.config_variable: config} if config else {})
    if login is not None and system.job_variable not in os.environ:
        return SshCommands(login, environment, timeout_s)
    submit_as = role.batch.submit_as
    if submit_as and submit_as != account():
        if named := os.environ.get(system.config_variable):
            environment = {system.config_variable: named, **environment}
        return SudoCommands(submit_as, environment, timeout_s)
    # a host that is a job itself must not give its own job's limits to those it submits
    own = {name for name in os.environ if name.startswith(system.job_variables)}
    own.discard(system.config_variable)
    programs = os.environ.get(system.programs_variable)
    if programs:  # a job's PATH need not have it
        environment["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), programs))
    return LocalCommands(environment, timeout_s, without=own)
