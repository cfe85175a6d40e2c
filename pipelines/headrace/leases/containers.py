"""Commands in the site's container: workers and ranks run there, the control plane never; pure.

Sources: https://apptainer.org/docs/user/latest/cli/apptainer_exec.html,
https://hpc.github.io/charliecloud/ch-run.html
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from headrace.recipe.batch import Container

_ALWAYS_THERE = ("/dev", "/proc", "/sys", "/tmp")
"""Folders of the node that both runtimes show inside."""

_APPTAINER_GPUS = {"nvidia": "--nv", "amd": "--rocm"}


def wrap(
    container: Container | None, command: Sequence[str], folders: Sequence[str], num_gpus: int
) -> tuple[str, ...]:
    """A command as it runs in the container.

    Args:
        container: The site's container; None for none.
        command: Program and arguments.
        folders: Folders of the node that are seen inside under the same path.
        num_gpus: Accelerators that the command may use.
    """
    if container is None:
        return tuple(command)
    return _RUNTIMES[container.runtime](
        container, tuple(command), _binds(container, folders), num_gpus
    )


def python_of(container: Container | None, python: str) -> str:
    """Interpreter of workers and ranks.

    Args:
        container: The site's container; None for none.
        python: Interpreter outside it.
    """
    return python if container is None or container.runtime == "none" else container.python


def _bare(
    container: Container, command: tuple[str, ...], binds: Sequence[str], num_gpus: int
) -> tuple[str, ...]:
    del container, binds, num_gpus
    return command


def _apptainer(
    container: Container, command: tuple[str, ...], binds: Sequence[str], num_gpus: int
) -> tuple[str, ...]:
    gpus = (_APPTAINER_GPUS[container.gpus],) if num_gpus else ()
    bound = tuple(f"--bind={bind}" for bind in binds)
    inside = (*_environment(container), *command)
    return ("apptainer", "exec", *gpus, *bound, *container.options, container.image, *inside)


def _charliecloud(
    container: Container, command: tuple[str, ...], binds: Sequence[str], num_gpus: int
) -> tuple[str, ...]:
    del num_gpus  # their libraries are put into the image beforehand, by ch-fromhost
    bound = tuple(f"--bind={bind}" for bind in binds)
    inside = (*_environment(container), *command)
    return ("ch-run", *bound, *container.options, container.image, "--", *inside)


_RUNTIMES = {"none": _bare, "apptainer": _apptainer, "charliecloud": _charliecloud}


def _environment(container: Container) -> tuple[str, ...]:
    """The runtimes differ in how they set variables; the program `env` is in every image."""
    values = tuple(f"{name}={value}" for name, value in container.env.items())
    return ("env", *values) if values else ()


def _binds(container: Container, folders: Sequence[str]) -> tuple[str, ...]:
    wanted = [each for each in folders if not _is_there(each)]
    named = {bind.split(":")[-1] for bind in container.binds}
    own = [each for each in dict.fromkeys(wanted) if each not in named]
    return (*container.binds, *own)


def _is_there(folder: str) -> bool:
    return any(PurePath(folder).is_relative_to(root) for root in _ALWAYS_THERE)
