"""What a batch system is asked for: container, login node, `batch`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from headrace.recipe.base import (
    Bytes,
    Name,
    Parallel,
    PositiveSeconds,
    Problems,
    Settings,
    Texts,
    Times,
)

_REGISTRIES = ("docker://", "oras://", "library://")


class Container(Settings):
    """The container that workers and ranks run in; host, driver and scheduler stay outside."""

    runtime: Literal["none", "apptainer", "charliecloud"] = "none"
    """Program that starts it, on PATH of the nodes; `none` switches it off."""
    image: str
    """Image file or folder, visible to all nodes; for Apptainer also `docker://`, `oras://` or
    `library://`, pulled once into the site's folder."""
    python: str = "python3"
    """Python in the image, with the same headrace and Dask as outside."""
    binds: Texts = ()
    """Folders of the node to mount, as `FROM` or `FROM:TO`; site and tiers always are."""
    env: dict[str, str] = {}
    """Environment variables inside, besides those of the job."""
    options: Texts = ()
    """Further options of the program that starts it."""
    gpus: Literal["nvidia", "amd"] = "nvidia"
    """Whose accelerators Apptainer shows inside when the role has some (`--nv`, `--rocm`)."""

    @property
    def is_pulled(self) -> bool:
        """Whether the image is in a registry."""
        return self.runtime == "apptainer" and "://" in self.image

    def problems(self) -> Problems:
        """Yield why the image cannot be used."""
        scheme, colon, _ = self.image.partition(":/")  # one slash is a slip, not a path
        is_address = bool(colon) and "/" not in scheme
        if is_address and self.runtime == "charliecloud":
            yield ("Charliecloud runs folders only; make one by `ch-image pull` and `ch-convert`, "
                   "and name it in `image`")  # fmt: skip
        elif is_address and not self.image.startswith(_REGISTRIES):
            yield f"`image` begins with '{scheme}:/'. Valid: {', '.join(_REGISTRIES)}, or a path"


class Service(Settings):
    """A program beside the lease's host, as a database: on a gang's first node, from start to end.

    Steps find its address, `HOST:PORT`, in `HEADRACE_SERVICE_<NAME>`.
    """

    command: Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)]
    """Program and arguments, without a shell; `{host}` and `{port}` stand for its address."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """TCP port that it listens on; null for a free one, which `command` names by `{port}`."""
    container: Container | None = None
    """Container that it runs in; null for none."""
    start_timeout: Annotated[PositiveSeconds, Field(le=3600)] = 60.0
    """The lease fails if the port accepts no connection after this time."""

    def problems(self) -> Problems:
        """Yield that its port is unknown to it."""
        if self.port is None and not any("{port}" in word for word in self.command):
            yield "`command` lacks `{port}`; write that, or the service's `port`"


class Login(Settings):
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


_Host = Annotated[
    Login, BeforeValidator(lambda value: {"host": value} if isinstance(value, str) else value)
]


class Batch(Settings):
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
    `LSF_ENVDIR`); null for the machine's own."""
    hosts: Annotated[tuple[_Host, ...], Field(max_length=100_000)] = ()
    """Machines of backend `ssh`; a gang takes the first ones, and the very first holds its host."""
    login: Login | None = None
    """Login node where the commands run, over one SSH connection; null for this machine."""
    poll: PositiveSeconds = 10.0
    """Time between two questions to the queue, which are for all leases of the site together."""
    submits_per_minute: Parallel = 30
    """Most jobs that the leases of the site submit in a minute."""
    max_jobs: Parallel | None = None
    """Most jobs of the site that are in the queue at once, running ones too; null: Slurm's own."""
    max_queued: Parallel | None = None
    """Most jobs of the site that wait in the queue at once; null for no limit."""

    def problems(self) -> Problems:
        """Yield keys that contradict each other."""
        if self.gpu_type and not self.gpus_per_node:
            yield "`gpu_type` says which, not how many; write `gpus_per_node`, too"
        if self.submit_as and self.login is not None:
            yield "`login` says as whom, with `{user}` in its host; leave `submit_as` out"
