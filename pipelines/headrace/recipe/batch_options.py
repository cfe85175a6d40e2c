"""Options of submit commands that headrace sets itself, and keys that a batch system lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headrace.recipe.batch import Batch

_NAMED = "headrace finds its jobs by their names"
_ONE_TASK = "headrace starts one task on each node; write `ranks_per_node` and `threads_per_node`"
_LOG = "the log belongs into the lease's folder"
_IN_FOLDER = "the job runs in the lease's folder"
_NO_REQUEUE = "headrace starts again what was lost; a second layer would double the work"
_AT_ONCE = "headrace needs the job's id at once"
_ONE_JOB = "a lease is one job"
_NO_TERMINAL = "nobody sits in front of the job"
_OWN_COMMAND = "the job's command is headrace's"
_LIFETIME = "write `lifetime` of the role"
_PARTITION = "write `batch.partition`"
_ACCOUNT = "write `batch.account`"


_REFUSED = {
    "slurm": {
        _NAMED: "-J, --job-name",
        "write `nodes` of the role": "-N, --nodes",
        _ONE_TASK: "-n, --ntasks, --ntasks-per-node, -c, --cpus-per-task",
        _LIFETIME: "-t, --time",
        _IN_FOLDER: "-D, --chdir",
        _LOG: "-o, --output, -e, --error, --open-mode",
        _NO_REQUEUE: "--requeue",
        "headrace says so already": "--no-requeue",
        _ONE_JOB: "-a, --array",
        _OWN_COMMAND: "--wrap",
        _AT_ONCE: "--parsable, -W, --wait",
        "`headrace site check` asks that": "--test-only",
    },
    "pbs": {
        _NAMED: "-N",
        _ONE_JOB: "-J",
        _NO_TERMINAL: "-I",
        _LOG: "-j, -k, -o, -e",
        _NO_REQUEUE: "-r",
        _PARTITION: "-q",
        _ACCOUNT: "-A",
        _AT_ONCE: "-W block=true",
    },
    "sge": {
        _NAMED: "-N",
        _ONE_JOB: "-t",
        _AT_ONCE: "-sync",
        _LOG: "-j, -o, -e",
        _IN_FOLDER: "-wd, -cwd",
        _NO_REQUEUE: "-r",
        "write `batch.parallel_environment`": "-pe",
        _PARTITION: "-q",
        _ACCOUNT: "-P",
    },
    "lsf": {
        _NAMED: "-J",
        _NO_TERMINAL: "-I",
        _AT_ONCE: "-K",
        _ONE_TASK: "-n",
        _LOG: "-o, -e, -oo, -eo",
        _IN_FOLDER: "-cwd",
        _NO_REQUEUE: "-r",
        _LIFETIME: "-W",
        "write `batch.gpus_per_node`": "-gpu",
        _PARTITION: "-q",
        _ACCOUNT: "-P",
    },
    "oar": {
        _NAMED: "-n, --name",
        _ONE_JOB: "--array",
        _NO_TERMINAL: "-I, --interactive",
        _IN_FOLDER: "-d, --directory",
        _LOG: "-O, --stdout, -E, --stderr",
        "write `threads_per_node`, `batch.gpus_per_node`, `lifetime`": "-l, --resource",
        _PARTITION: "-q, --queue",
        _ACCOUNT: "--project",
    },
    "srun": {
        _ONE_TASK: "-n, --ntasks, --ntasks-per-node, -c, --cpus-per-task",
        "it starts one task on each node of the job": "-N, --nodes",
        "a gang is all or nothing": "-K, --kill-on-bad-exit, -W, --wait",
        "the nodes need the environment of the job": "--export",
        _LOG: "-o, --output, -e, --error",
        _NO_TERMINAL: "--pty",
        _OWN_COMMAND: "--multi-prog",
    },
}
"""Why, or what to write, and options that headrace sets itself: submit commands and `srun`."""

_SBATCH_KEYS = {
    "partition": "-p, --partition",
    "account": "-A, --account",
    "qos": "-q, --qos",
    "gpus_per_node": "--gres, --gpus-per-node, -G, --gpus, --gpus-per-task",
    "memory_per_node": "--mem, --mem-per-cpu, --mem-per-gpu",
    "constraint": "-C, --constraint",
    "exclusive": "--exclusive",
    "reservation": "--reservation",
    "nodelist": "-w, --nodelist",
    "exclude": "-x, --exclude",
}
"""Keys of `batch`, and the options of `sbatch` that would overrule them."""

_OWN = "write what the cluster knows into `batch.options`"
_OF_SLURM = {"qos": _OWN, "constraint": _OWN, "srun_options": "there is no `srun`"}
_OF_SGE = {"parallel_environment": "that is Grid Engine's"}
_MISSING = {
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
    "htcondor": {
        **dict.fromkeys(("gpu_type", "exclusive", "reservation"), _OWN),
        **_OF_SLURM,
        **_OF_SGE,
        "partition": "it has no queues",
    },
    "oar": {
        **dict.fromkeys(("gpu_type", "memory_per_node", "exclusive", "reservation"), _OWN),
        **dict.fromkeys(("nodelist", "exclude"), _OWN),
        **_OF_SLURM,
        **_OF_SGE,
    },
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


def check_options(backend: str, batch: Batch, host_options: Iterable[str]) -> None:
    """Refuse keys of `batch` that a backend lacks, and options that contradict headrace or a key.

    Raises:
        ValueError: There is one, or something that is no option.
    """
    refused = _REFUSED.get(backend, {})
    _refuse("batch.options", batch.options, refused)
    _refuse("host_options", host_options, refused)
    _refuse(
        "batch.srun_options", batch.srun_options, _REFUSED["srun"] if backend == "slurm" else {}
    )
    given = batch.model_fields_set & {key for key, value in batch if value}
    missing = _MISSING.get(backend, {})
    for key in sorted(given & missing.keys()):
        raise ValueError(f"backend '{backend}' has no `batch.{key}`: {missing[key]}")
    if backend == "slurm":
        _refuse_twice(batch.options, given)
    for option in (*batch.options, *host_options):
        if backend == "htcondor" and not option.startswith("-append "):
            raise ValueError(f"'{option}' is no option; write it as '-append name = value'")


def leaves_nodes_out(backend: str) -> bool:
    """Whether jobs of a backend can be kept off nodes on which others have failed."""
    return "exclude" not in _MISSING.get(backend, ("exclude",))


def _refuse(key: str, options: Iterable[str], refused: Mapping[str, str]) -> None:
    for option in options:
        name = _name(option)
        if not name:
            raise ValueError(f"'{option}' in `{key}` is no option; write it as '--name=value'")
        for why, names in refused.items():
            if {name, option.split()[0], option} & set(names.split(", ")):
                raise ValueError(f"`{key}` must not hold '{option}': {why}")


def _refuse_twice(options: Iterable[str], given: Iterable[str]) -> None:
    keys = {option: key for key in given for option in _SBATCH_KEYS.get(key, "").split(", ")}
    for option in options:
        key = keys.get(_name(option))
        if key:
            raise ValueError(
                f"`batch.options` must not hold '{option}': `batch.{key}` says it already"
            )


def _name(option: str) -> str:
    found = re.match(r"--[A-Za-z][\w-]*|-[A-Za-z]", option)
    return found[0] if found else ""
