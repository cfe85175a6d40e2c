"""Commands in the site's container: only workers and ranks run there, never the control plane.

Sources: https://apptainer.org/docs/user/latest/cli/apptainer_exec.html,
https://hpc.github.io/charliecloud/ch-run.html
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import PurePath

from headrace.clusters.images import on_site
from headrace.clusters.lease_records import LeaseSpec
from headrace.files import tiers
from headrace.files.layout import LeaseFolder
from headrace.recipe.batch import Container
from headrace.recipe.unix_accounts import login_name

_ALWAYS_THERE = ("/dev", "/proc", "/sys", "/tmp")
"""Folders of the node that both runtimes show inside."""

_INSIDE = {"HEADRACE_INSIDE": "1"}
"""Environment variable of processes in a container."""

_RUNTIMES: dict[str, tuple[tuple[str, ...], dict[str, str], tuple[str, ...]]] = {
    "apptainer": (("apptainer", "exec"), {"nvidia": "--nv", "amd": "--rocm"}, ()),
    # libraries of accelerators are put into the image beforehand, by ch-fromhost
    "charliecloud": (("ch-run",), {}, ("--",)),
}
"""Program, its option for each vendor of accelerators, separator before the command."""


def in_container(
    folder: LeaseFolder, spec: LeaseSpec, arguments: tuple[str, ...]
) -> tuple[str, ...]:
    """Return a Python command as workers and ranks run it: in the site's container, if any."""
    batch = spec.role.batch
    command = (python_of(batch.container, sys.executable), *arguments)
    site = folder.path.parent.parent
    sources = filter(os.path.isdir, spec.code_sources)  # other machines may lack them
    tiers_shown = (str(tiers.folder_of(tier)) for tier in spec.tiers)
    shown = (str(site), *tiers_shown, *spec.code, *sources)
    container = batch.container and on_site(batch.container, site)
    return wrap(container, command, shown, batch.gpus_per_node)


def environment() -> dict[str, str]:
    """Return the variables of a process in a container; Charliecloud requires the user's name."""
    return {"USER": login_name(), **os.environ}


def wrap(
    container: Container | None, command: Sequence[str], folders: Sequence[str], num_gpus: int
) -> tuple[str, ...]:
    """Return a command in the site's container, if any, with these folders and accelerators.

    Folders of the node have the same paths inside; `env` sets variables in any image.
    """
    if container is None or container.runtime == "none":
        return tuple(command)
    program, options_of_gpus, separator = _RUNTIMES[container.runtime]
    gpus = (options_of_gpus[container.gpus],) if num_gpus and options_of_gpus else ()
    bound = tuple(f"--bind={bind}" for bind in _binds(container, folders))
    image = (*gpus, *bound, *container.options, container.image, *separator)
    values = tuple(f"{name}={value}" for name, value in (_INSIDE | container.env).items())
    return (*program, *image, "env", *values, *command)


def is_inside() -> bool:
    """Whether this process runs in the site's container."""
    return _INSIDE.items() <= os.environ.items()


def python_of(container: Container | None, python: str) -> str:
    """Return the interpreter of workers and ranks; `python` outside a container."""
    return python if container is None or container.runtime == "none" else container.python


def _binds(container: Container, folders: Sequence[str]) -> tuple[str, ...]:
    wanted = [
        each
        for each in folders
        if not any(PurePath(each).is_relative_to(root) for root in _ALWAYS_THERE)
    ]
    named = {bind.split(":")[-1] for bind in container.binds}
    own = [each for each in dict.fromkeys(wanted) if each not in named]
    return (*container.binds, *own)
