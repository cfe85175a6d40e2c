"""What a batch system is asked for: container, login node, `batch`, and what it lacks of that."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.recipe.base import Bytes, Name, Parallel, Seconds, Texts, Times
from headrace.record import Record

_REFUSED = {
    "headrace finds its jobs by their names": {
        "slurm": "-J, --job-name", "pbs": "-N", "sge": "-N", "lsf": "-J", "oar": "-n, --name",
    },
    "headrace starts one task on each node; write `ranks_per_node` and `threads_per_node`": {
        "slurm": "-n, --ntasks, --ntasks-per-node, -c, --cpus-per-task",
        "srun": "-n, --ntasks, --ntasks-per-node, -c, --cpus-per-task", "lsf": "-n",
    },
    "the log belongs into the lease's folder": {
        "slurm": "-o, --output, -e, --error, --open-mode", "srun": "-o, --output, -e, --error",
        "pbs": "-j, -k, -o, -e", "sge": "-j, -o, -e", "lsf": "-o, -e, -oo, -eo",
        "oar": "-O, --stdout, -E, --stderr",
    },
    "the job runs in the lease's folder": {
        "slurm": "-D, --chdir", "sge": "-wd, -cwd", "lsf": "-cwd", "oar": "-d, --directory",
    },
    "headrace starts again what was lost; a second layer would double the work": {
        "slurm": "--requeue", "pbs": "-r", "sge": "-r", "lsf": "-r",
    },
    "headrace needs the job's id at once": {
        "slurm": "--parsable, -W, --wait", "pbs": "-W block=true", "sge": "-sync", "lsf": "-K",
    },
    "a lease is one job": {"slurm": "-a, --array", "pbs": "-J", "sge": "-t", "oar": "--array"},
    "nobody sits in front of the job": {
        "srun": "--pty", "pbs": "-I", "lsf": "-I", "oar": "-I, --interactive",
    },
    "the job's command is headrace's": {"slurm": "--wrap", "srun": "--multi-prog"},
    "headrace says so already": {"slurm": "--no-requeue"},
    "`headrace site check` asks that": {"slurm": "--test-only"},
    "it starts one task on each node of the job": {"srun": "-N, --nodes"},
    "a gang is all or nothing": {"srun": "-K, --kill-on-bad-exit, -W, --wait"},
    "the nodes need the environment of the job": {"srun": "--export"},
    "write `nodes` of the role": {"slurm": "-N, --nodes"},
    "write `lifetime` of the role": {"slurm": "-t, --time", "lsf": "-W"},
    "write `threads_per_node`, `batch.gpus_per_node`, `lifetime`": {"oar": "-l, --resource"},
    "write `batch.partition`": {"pbs": "-q", "sge": "-q", "lsf": "-q", "oar": "-q, --queue"},
    "write `batch.account`": {"pbs": "-A", "sge": "-P", "lsf": "-P", "oar": "--project"},
    "write `batch.parallel_environment`": {"sge": "-pe"},
    "write `batch.gpus_per_node`": {"lsf": "-gpu"},
}  # fmt: skip
"""Why, or what to write, and by backend the options of its submit command and of `srun`."""

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
_OF_OTHERS = {"submit_as": "only jobs of Slurm can be submitted as others"}
_OF_QUEUES = (
    *("partition", "account", "qos", "gpu_type", "memory_per_node", "constraint", "exclusive"),
    *("reservation", "nodelist", "exclude", "options", "srun_options", "parallel_environment"),
    *("login", "config", "submit_as"),
)
_MISSING = {
    "slurm": _OF_SGE,
    "pbs": {
        **_OF_OTHERS,
        **_OF_SLURM,
        **_OF_SGE,
        "gpu_type": _OWN,
        "reservation": "a reservation is a queue; write it into `batch.partition`",
        "nodelist": _OWN,
        "exclude": _OWN,
    },
    "sge": {
        **_OF_OTHERS,
        **_OF_SLURM,
        "gpu_type": _OWN,
        "memory_per_node": f"its name for memory differs; {_OWN}, such as `-l h_vmem=4G`",
        "exclusive": f"its name for it differs; {_OWN}, such as `-l exclusive=true`",
    },
    "lsf": {**_OF_OTHERS, **_OF_SLURM, **_OF_SGE},
    "htcondor": {
        **_OF_OTHERS,
        **dict.fromkeys(("gpu_type", "exclusive", "reservation"), _OWN),
        **_OF_SLURM,
        **_OF_SGE,
        "partition": "it has no queues",
    },
    "oar": {
        **_OF_OTHERS,
        **dict.fromkeys(("gpu_type", "memory_per_node", "exclusive", "reservation"), _OWN),
        **dict.fromkeys(("nodelist", "exclude"), _OWN),
        **_OF_SLURM,
        **_OF_SGE,
    },
    "ssh": dict.fromkeys(_OF_QUEUES, "there is no queue"),
    "ec2": dict.fromkeys(_OF_QUEUES, "there is no queue; `ec2` of the role says which instances"),
}
"""Keys of `batch` that a backend cannot fulfil, and what to do instead."""


class Container(Record):
    """The container that workers and ranks run in; host, driver and scheduler stay outside."""

    runtime: Literal["none", "apptainer", "charliecloud"] = "none"
    """Program that starts it, on PATH of the nodes; `none` switches it off."""
    image: str
    """Image file or folder, seen by all nodes."""
    python: str = "python3"
    """Python in the image, with the same headrace and Dask as outside."""
    binds: Texts = ()
    """Folders of the node that are seen inside, as `FROM` or `FROM:TO`; site and tiers are."""
    env: dict[str, str] = {}
    """Environment variables inside, besides those of the job."""
    options: Texts = ()
    """Further options of the program that starts it."""
    gpus: Literal["nvidia", "amd"] = "nvidia"
    """Whose accelerators Apptainer shows inside when the role has some (`--nv`, `--rocm`)."""


class Login(Record):
    """A login node, reached by OpenSSH without questions: a key, and a host key that is known."""

    host: str = Field(pattern=r"^[^\s-]\S*$")
    """Where the batch system's commands are, such as `me@login1`, or a name of `~/.ssh/config`;
    `{user}` stands for who asks."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port; null for that of OpenSSH's configuration, else 22."""
    identity: str | None = None
    """File of the private key, also with `{user}`; null for what OpenSSH finds: an agent, the keys
    in `~/.ssh`."""
    options: Texts = ()
    """Further options of OpenSSH, such as `ProxyJump=gate.example.org`."""
    path: str = ""
    """Folders of the batch system's commands there, when a plain `ssh` does not find them."""


def _as_login(value: object) -> object:
    return {"host": value} if isinstance(value, str) else value


class Batch(Record):
    """What a batch system is asked for, besides nodes and time."""

    partition: str | None = None
    """Partition or queue; null for the default one."""
    account: str | None = None
    """Account that pays (Grid Engine, LSF: project), also with `{user}` for who asks; null for the
    user's default."""
    submit_as: str | None = Field(default=None, pattern=r"^(\{user\}|[a-z_][a-z0-9_-]{0,31})$")
    """`{user}`: Slurm's commands are run by `sudo` as who asks, where that is another account; null
    for the account that runs headrace."""
    qos: str | None = None
    """Slurm's quality of service; null for the default."""
    parallel_environment: str | None = None
    """Grid Engine's parallel environment that gives each node all its slots; null for one slot."""
    gpus_per_node: Times = 0
    """Accelerators of each node."""
    gpu_type: Name | None = None
    """Type of the accelerators in the cluster's words, such as `a100`; null for any."""
    memory_per_node: Bytes | None = None
    """Memory of each node; null for what the partition gives by default."""
    constraint: str | None = None
    """Features that the nodes must have, such as `ib&a100`; null for any nodes."""
    exclusive: bool = False
    """Nodes that no other job shares."""
    reservation: str | None = None
    """Reservation that the job may use; null for none."""
    nodelist: Texts = ()
    """Nodes that the job must get, such as `node[1-4]`."""
    exclude: Texts = ()
    """Nodes that the job must not get."""
    options: Texts = ()
    """Further options of the submit command, such as `--comment=two words`."""
    srun_options: Texts = ()
    """Further options of Slurm's `srun`, which starts one task a node, such as `--mpi=none`."""
    modules: Texts = ()
    """Environment modules that are loaded before the prologue, such as `cuda/12.4`."""
    prologue: Texts = ()
    """Shell lines that run on the first node before anything else, such as `ulimit -n 65536`."""
    epilogue: Texts = ()
    """Shell lines that run on the first node after all else, unless the job was ended."""
    python: str | None = None
    """Python of the nodes, with headrace in it; null for the one that runs headrace here."""
    container: Container | None = None
    """Container of workers and ranks; null for none."""
    preflight: Literal["full", "quick", "off"] = "quick"
    """What each node of a gang looks at before work starts; `full`: an all-reduce, too."""
    interface: str | None = None
    """Network interface between the nodes; null for the one of the default route."""
    config: str | None = None
    """Which batch system, where there are several (`SLURM_CONF`, `PBS_CONF_FILE`, `SGE_ROOT`,
    `LSF_ENVDIR`, `CONDOR_CONFIG`, `OARCONFFILE`); null for the machine's own."""
    hosts: Annotated[
        tuple[Annotated[Login, BeforeValidator(_as_login)], ...], Field(max_length=100_000)
    ] = ()
    """Machines of backend `ssh`; a gang takes the first ones, and the very first holds its host."""
    login: Login | None = None
    """Login node where the commands run, over one SSH connection; null for this machine."""
    poll: Annotated[Seconds, Field(gt=0)] = 10.0
    """Time between two questions to the queue, which are for all leases of the site together."""
    submits_per_minute: Parallel = 30
    """Most jobs that the leases of the site submit in a minute."""
    max_jobs: Parallel | None = None
    """Most jobs of the site that are in the queue at once, running ones too; null: Slurm's own."""
    max_queued: Parallel | None = None
    """Most jobs of the site that wait in the queue at once; null for no limit."""

    @model_validator(mode="after")
    def _check(self) -> Batch:
        if self.gpu_type and not self.gpus_per_node:
            raise ValueError("`gpu_type` says which, not how many; write `gpus_per_node`, too")
        if self.submit_as and self.login is not None:
            raise ValueError(
                "`login` says as whom, with `{user}` in its host; leave `submit_as` out"
            )
        return self


def check_options(backend: str, batch: Batch, host_options: Iterable[str]) -> None:
    """Refuse keys of `batch` that a backend lacks, or options that contradict headrace or it."""
    _refuse("batch.options", batch.options, backend)
    _refuse("host_options", host_options, backend)
    if backend == "slurm":
        _refuse("batch.srun_options", batch.srun_options, "srun")
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


def _refuse(key: str, options: Iterable[str], command: str) -> None:
    for option in options:
        name = _name(option)
        if not name:
            raise ValueError(f"'{option}' in `{key}` is no option; write it as '--name=value'")
        for why, names in _REFUSED.items():
            if {name, option.split()[0], option} & set(names.get(command, "").split(", ")):
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
