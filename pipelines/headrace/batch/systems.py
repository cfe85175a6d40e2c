"""Which batch system a role names, chosen once from a table."""

from __future__ import annotations

import importlib
import os

from headrace.batch.commands import Commands, LocalCommands, SudoCommands
from headrace.batch.hosts import SshHosts
from headrace.batch.htcondor import HTCondor
from headrace.batch.lsf import Lsf
from headrace.batch.machines import Meter
from headrace.batch.oar import Oar
from headrace.batch.pbs import Pbs
from headrace.batch.sge import Sge
from headrace.batch.slurm import Slurm
from headrace.batch.ssh import SshCommands
from headrace.batch.system import BatchSystem
from headrace.errors import SiteError, nearest
from headrace.recipe.site import Role
from headrace.recipe.unix_accounts import account

_SYSTEMS: dict[str, type[Slurm | Pbs | Sge | Lsf | HTCondor | Oar]] = {
    "slurm": Slurm,
    "pbs": Pbs,
    "sge": Sge,
    "lsf": Lsf,
    "htcondor": HTCondor,
    "oar": Oar,
}

# seconds since the epoch: the commands may run in another time zone than this process
_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}


def system_of(role: Role, timeout_s: float = 60.0) -> BatchSystem:
    """The batch system that a role of a site names; a command without an answer is given up.

    Its commands run on this machine, or on the login node that the role names; inside a job they
    run where they are, for that is inside the cluster.

    Raises:
        SiteError: There is none of that name.
    """
    if role.ec2 is not None:
        queue = f"ec2 {role.ec2.profile or ''} {role.ec2.region}"
        # its client takes long to load, and few sites have it
        ec2: BatchSystem = importlib.import_module("headrace.batch.ec2").Ec2(role.ec2, queue)
        return ec2
    if role.batch.hosts:
        return SshHosts(role.batch.hosts, commands_of_hosts(role))
    if role.backend not in _SYSTEMS:
        raise SiteError(
            f"There is no batch system '{role.backend}'", nearest(role.backend, _SYSTEMS)
        )
    config, login = role.batch.config, role.batch.login
    address = login and f"{login.host}:{login.port or ''}"
    queue = " ".join(part for part in (address, config) if part)
    return _SYSTEMS[role.backend](_commands_of(role, timeout_s), queue)


def meter_of(role: Role) -> Meter | None:
    """What counts the machines of a role and prices them; None where they cost nothing."""
    if role.ec2 is None:
        return None
    meter: Meter = importlib.import_module("headrace.batch.ec2_meter").Ec2Meter(role.ec2)
    return meter


def _commands_of(role: Role, timeout_s: float) -> Commands:
    system, config, login = _SYSTEMS[role.backend], role.batch.config, role.batch.login
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


def commands_of_hosts(role: Role) -> dict[str, Commands]:
    """What runs commands on the hosts of a role without a queue, by their names."""
    return {each.host: SshCommands(each, {}) for each in role.batch.hosts}
