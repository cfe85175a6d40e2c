"""Backends, each declared by a class and found by its name, and what roles may use of them."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeVar

from headrace.entry_points import load_entry, names_in
from headrace.errors import SiteError, UserError, nearest
from headrace.recipe.base import Problems
from headrace.record import Record

RoleType = TypeVar("RoleType")
"""Roles of a site: `headrace.recipe.site.Role`, which asks the backends itself."""

GROUP = "headrace.backends"
"""Entry points: classes of backends by the name that roles give."""

_BUILT_IN = {
    "local": "headrace.recipe.backend:Local",
    "slurm": "headrace.batch.slurm:Slurm",
    "ssh": "headrace.batch.ssh_hosts:SshHosts",
}


QUEUE_KEYS = (
    *("partition", "account", "qos", "gpu_type", "memory_per_node", "constraint", "exclusive"),
    *("reservation", "nodelist", "exclude", "options", "srun_options", "parallel_environment"),
    *("login", "config", "submit_as"),
)
"""Keys of `batch` that only a queue can fulfil."""

ASSUMED_PER_HOUR = -math.log(1.0 - 0.2) / (365.25 * 24 / 12)
"""Default interruptions per hour of a spot instance: 1 in 5 within a month, the start of the last
band, `>20%`, of https://aws.amazon.com/ec2/spot/instance-advisor/."""


@dataclass(frozen=True, kw_only=True)
class Interruptions:
    """How often the provider takes machines back."""

    per_hour: float
    """Interruptions of a node per hour."""
    source: str
    """Where the number comes from, for users."""


class Backend(Generic[RoleType]):
    """What a backend can do, and which options roles may give it."""

    options: ClassVar[type[Record] | None] = None
    """Model of the options that a role gives under the backend's name; None without options."""
    lacks: ClassVar[Mapping[str, str]] = {}
    """Keys of `batch` that it does not support, and what to do instead."""
    refuses: ClassVar[Mapping[str, str]] = {}
    """Options of its submit command that headrace sets, as `-q, --queue`, and what to write
    instead."""
    sets: ClassVar[Mapping[str, str]] = {}
    """Keys of `batch`, and the options of its submit command that would override them."""
    kinds: ClassVar[tuple[Literal["pool", "gang"], ...]] = ("pool", "gang")
    """Kinds of lease that it supports."""
    launchers: ClassVar[tuple[str, ...]] = ("mpirun",)
    """Programs that may start all ranks of a gang; by default each node starts its own."""
    has_queue: ClassVar[bool] = True
    """Whether leases wait in a queue that gives each job a time limit."""
    shares_machines: ClassVar[bool] = False
    """Whether other users' work may run on its machines at the same time."""
    is_here: ClassVar[bool] = False
    """Whether its nodes are the machine that headrace runs on: ready within seconds, and free."""
    hosts_in_jobs: ClassVar[bool] = True
    """Whether the host of a pool may be a job, `host: job`."""
    takes_hosts: ClassVar[bool] = False
    """Whether `batch.hosts` are its machines."""
    opens_shells: ClassVar[bool] = False
    """Whether `headrace shell` reaches its nodes."""

    @classmethod
    def leaves_nodes_out(cls) -> bool:
        """Whether its jobs can avoid nodes on which others have failed."""
        return cls.has_queue and "exclude" not in cls.lacks

    @classmethod
    def check_role(cls, role: RoleType) -> None:
        """Raise ValueError for keys that contradict each other in a role of this backend."""

    @classmethod
    def connect(cls, role: RoleType, timeout_s: float) -> Any:
        """Return the `BatchSystem` of a role; its commands time out after `timeout_s`."""
        raise SiteError(f"Backend {cls.__name__} has no batch system")

    @classmethod
    def meter(cls, _role: RoleType, *, asks_all: bool = False) -> Any:
        """Return the `Meter` that counts and prices machines of a role; None if the role does.

        With `asks_all` it queries all sources of prices, also those that the role leaves out.
        """
        return None

    @classmethod
    def interruptions(cls, _role: RoleType) -> Interruptions | None:
        """Return how often nodes of a role are taken back; None if they never are."""
        return None

    @classmethod
    def reap(cls) -> Iterable[str]:
        """End abandoned machines and jobs that it started; return a line for each, for users."""
        return ()


class Local(Backend[Any]):
    """This machine."""

    has_queue = False
    shares_machines = True
    is_here = True
    hosts_in_jobs = False
    opens_shells = True


@cache
def backend_of(name: str) -> type[Backend[Any]]:
    """Return the backend of a name; entry points are read only if it is not built in.

    Raises:
        SiteError: It does not exist, or its package cannot be loaded.
    """
    if name in _BUILT_IN:
        module, _, kind = _BUILT_IN[name].partition(":")
        found: type[Backend[Any]] = getattr(importlib.import_module(module), kind)
        return found
    names = known_backends()
    if name not in names:
        raise SiteError(f"There is no backend '{name}'", nearest(name, names))
    added: type[Backend[Any]] = load_entry(GROUP, name)
    return added


def known_backends() -> list[str]:
    """Return the names of all backends."""
    return [*_BUILT_IN, *(name for name in names_in(GROUP) if name not in _BUILT_IN)]


@cache
def option_blocks() -> Mapping[str, type[Record]]:
    """Return the models of backends' own options, by the names of the backends.

    Backends whose package cannot be loaded are left out: roles that name them get the error.
    """
    found = {}
    for name in known_backends():
        with suppress(UserError):
            if (options := backend_of(name).options) is not None:
                found[name] = options
    return found


def refused(key: str, options: Iterable[str], reasons: Mapping[str, str]) -> Problems:
    """Yield why options are malformed, or set by headrace or another key.

    `key` of the site holds them; `reasons` are by the names of options, as `-q, --queue`.
    """
    for option in options:
        found = re.match(r"--[A-Za-z][\w-]*|-[A-Za-z]", option)
        if found is None:
            yield f"'{option}' in `{key}` is malformed; write it as '--name=value'"
            continue
        for names, why in reasons.items():
            if {found[0], option.split()[0], option} & set(names.split(", ")):
                yield f"`{key}` must not hold '{option}': {why}"


def known(name: str) -> str:
    """Return the name of a backend; raise ValueError if it does not exist."""
    try:
        backend_of(name)
    except SiteError as error:
        raise ValueError(f"unknown backend. {error.hint}") from None
    return name
