"""Options of submit commands that headrace sets itself, and what to write in their place; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_NAMED = "headrace finds its jobs by their names"
_ONE_TASK = "headrace starts one task on each node; write `ranks_per_node` and `threads_per_node`"
_LOG = "the log belongs into the lease's folder"
_NO_REQUEUE = "headrace starts again what was lost; a second layer would double the work"
_AT_ONCE = "headrace needs the job's id at once"

SBATCH = {
    "-J": _NAMED,
    "--job-name": _NAMED,
    "-N": "write `nodes` of the role",
    "--nodes": "write `nodes` of the role",
    "-n": _ONE_TASK,
    "--ntasks": _ONE_TASK,
    "--ntasks-per-node": _ONE_TASK,
    "-c": _ONE_TASK,
    "--cpus-per-task": _ONE_TASK,
    "-t": "write `lifetime` of the role",
    "--time": "write `lifetime` of the role",
    "-D": "the job runs in the lease's folder",
    "--chdir": "the job runs in the lease's folder",
    "-o": _LOG,
    "--output": _LOG,
    "-e": _LOG,
    "--error": _LOG,
    "--open-mode": _LOG,
    "--requeue": _NO_REQUEUE,
    "--no-requeue": "headrace says so already",
    "-a": "a lease is one job",
    "--array": "a lease is one job",
    "--wrap": "the job's command is headrace's",
    "--parsable": _AT_ONCE,
    "-W": _AT_ONCE,
    "--wait": _AT_ONCE,
    "--test-only": "`headrace site check` asks that",
}
"""Options of `sbatch` that `batch.options` must not hold, and why."""

SRUN = {
    "-n": _ONE_TASK,
    "--ntasks": _ONE_TASK,
    "--ntasks-per-node": _ONE_TASK,
    "-N": "it starts one task on each node of the job",
    "--nodes": "it starts one task on each node of the job",
    "-c": _ONE_TASK,
    "--cpus-per-task": _ONE_TASK,
    "-K": "a gang is all or nothing",
    "--kill-on-bad-exit": "a gang is all or nothing",
    "-W": "a gang is all or nothing",
    "--wait": "a gang is all or nothing",
    "--export": "the nodes need the environment of the job",
    "-o": _LOG,
    "--output": _LOG,
    "-e": _LOG,
    "--error": _LOG,
    "--pty": "nobody sits in front of the job",
    "--multi-prog": "the job's command is headrace's",
}
"""Options of `srun` that `batch.srun_options` must not hold, and why."""

_SBATCH_KEYS = {
    "partition": ("-p", "--partition"),
    "account": ("-A", "--account"),
    "qos": ("-q", "--qos"),
    "gpus_per_node": ("--gres", "--gpus-per-node", "-G", "--gpus", "--gpus-per-task"),
    "memory_per_node": ("--mem", "--mem-per-cpu", "--mem-per-gpu"),
    "constraint": ("-C", "--constraint"),
    "exclusive": ("--exclusive",),
    "reservation": ("--reservation",),
    "nodelist": ("-w", "--nodelist"),
    "exclude": ("-x", "--exclude"),
}

KEYS = {"slurm": _SBATCH_KEYS}
"""Keys of `batch` and the options of the submit command that would overrule them, by backend."""

_PBS_QSUB = {
    "-N": _NAMED,
    "-J": "a lease is one job",
    "-I": "nobody sits in front of the job",
    "-W block=true": _AT_ONCE,
    "-j": _LOG,
    "-k": _LOG,
    "-o": _LOG,
    "-e": _LOG,
    "-r": _NO_REQUEUE,
    "-q": "write `batch.partition`",
    "-A": "write `batch.account`",
}

_SGE_QSUB = {
    "-N": _NAMED,
    "-t": "a lease is one job",
    "-sync": _AT_ONCE,
    "-j": _LOG,
    "-o": _LOG,
    "-e": _LOG,
    "-wd": "the job runs in the lease's folder",
    "-cwd": "the job runs in the lease's folder",
    "-r": _NO_REQUEUE,
    "-pe": "write `batch.parallel_environment`",
    "-q": "write `batch.partition`",
    "-P": "write `batch.account`",
}

_BSUB = {
    "-J": _NAMED,
    "-I": "nobody sits in front of the job",
    "-K": _AT_ONCE,
    "-n": _ONE_TASK,
    "-o": _LOG,
    "-e": _LOG,
    "-oo": _LOG,
    "-eo": _LOG,
    "-cwd": "the job runs in the lease's folder",
    "-r": _NO_REQUEUE,
    "-W": "write `lifetime` of the role",
    "-gpu": "write `batch.gpus_per_node`",
    "-q": "write `batch.partition`",
    "-P": "write `batch.account`",
}

OF_BACKEND: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "slurm": (SBATCH, SRUN),
    "pbs": (_PBS_QSUB, {}),
    "sge": (_SGE_QSUB, {}),
    "lsf": (_BSUB, {}),
}
"""Refused options of the submit command and of the launcher, by backend."""

_OWN = "write what the cluster knows into `batch.options`"
_OF_SLURM = {"qos": _OWN, "constraint": _OWN, "srun_options": "there is no `srun`"}
_OF_SGE = {"parallel_environment": "that is Grid Engine's"}

MISSING = {
    "slurm": _OF_SGE,
    "pbs": {
        **_OF_SLURM,
        **_OF_SGE,
        "gpu_type": _OWN,
        "reservation": "a reservation is a queue; write it into `batch.partition`",
        "nodelist": _OWN,
        "exclude": _OWN,
    },
    "sge": {
        **_OF_SLURM,
        "gpu_type": _OWN,
        "memory_per_node": f"its name for memory differs; {_OWN}, such as `-l h_vmem=4G`",
        "exclusive": f"its name for it differs; {_OWN}, such as `-l exclusive=true`",
    },
    "lsf": {**_OF_SLURM, **_OF_SGE},
    "ssh": dict.fromkeys(
        (
            *("partition", "account", "qos", "gpu_type", "memory_per_node", "constraint"),
            *("exclusive", "reservation", "nodelist", "exclude", "options", "srun_options"),
            *("parallel_environment", "login", "config"),
        ),
        "there is no queue",
    ),
}
"""Keys of `batch` that a backend cannot fulfil, and what to do instead."""


def refuse(key: str, options: Iterable[str], reserved: Mapping[str, str]) -> None:
    """Refuse options that contradict what headrace sets itself.

    Args:
        key: Where they are written, for the error.
        options: As the user wrote them, such as `--constraint=a100`.
        reserved: Refused options, and why.

    Raises:
        ValueError: There is one, or something that is no option.
    """
    for option in options:
        name = _name(option)
        if not name:
            raise ValueError(f"'{option}' in `{key}` is no option; write it as '--name=value'")
        for known in (name, option.split()[0]):
            if known in reserved:
                raise ValueError(f"`{key}` must not hold '{option}': {reserved[known]}")


def refuse_missing(backend: str, given: Iterable[str]) -> None:
    """Refuse keys of `batch` that a backend cannot fulfil.

    Args:
        backend: Name of the backend.
        given: Keys of `batch` that say something.

    Raises:
        ValueError: There is one.
    """
    missing = MISSING.get(backend, {})
    for key in sorted(set(given) & set(missing)):
        raise ValueError(f"backend '{backend}' has no `batch.{key}`: {missing[key]}")


def refuse_twice(
    options: Iterable[str], given: Iterable[str], known: Mapping[str, Iterable[str]]
) -> None:
    """Refuse options that would silently overrule a key of `batch`.

    Args:
        options: As the user wrote them.
        given: Keys of `batch` that say something.
        known: Keys of `batch` and their options.

    Raises:
        ValueError: There is one.
    """
    keys = {option: key for key in given for option in known.get(key, ())}
    for option in options:
        key = keys.get(_name(option))
        if key:
            raise ValueError(
                f"`batch.options` must not hold '{option}': `batch.{key}` says it already"
            )


def _name(option: str) -> str:
    found = re.match(r"--[A-Za-z][\w-]*|-[A-Za-z]", option)
    return found[0] if found else ""
