"""The site: how this place gives out machines and storage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.recipe import reserved
from headrace.recipe.base import Bytes, Name, Part, Seconds, no_credentials


class Container(Part):
    """The container that workers and ranks run in; host, driver and scheduler stay outside."""

    runtime: Literal["none", "apptainer", "charliecloud"] = "none"
    """Program that starts it, on PATH of the nodes; `none` switches it off."""
    image: str
    """Image file or folder, seen by all nodes."""
    python: str = "python3"
    """Python in the image, with the same headrace and Dask as outside."""
    binds: tuple[str, ...] = ()
    """Folders of the node that are seen inside, as `FROM` or `FROM:TO`; site and tiers are."""
    env: dict[str, str] = {}
    """Environment variables inside, besides those of the job."""
    options: tuple[str, ...] = ()
    """Further options of the program that starts it."""
    gpus: Literal["nvidia", "amd"] = "nvidia"
    """Whose accelerators Apptainer shows inside when the role has some (`--nv`, `--rocm`)."""


class Login(Part):
    """A login node, reached by OpenSSH without questions: a key, and a host key that is known."""

    host: str = Field(pattern=r"^[^\s-]\S*$")
    """Where the batch system's commands are, such as `me@login1`, or a name of `~/.ssh/config`."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port; null for that of OpenSSH's configuration, else 22."""
    identity: str | None = None
    """File of the private key; null for what OpenSSH finds: an agent, the keys in `~/.ssh`."""
    options: tuple[str, ...] = ()
    """Further options of OpenSSH, such as `ProxyJump=gate.example.org`."""
    path: str = ""
    """Folders of the batch system's commands there, when a plain `ssh` does not find them."""


def _as_login(value: object) -> object:
    return {"host": value} if isinstance(value, str) else value


class Batch(Part):
    """What a batch system is asked for, besides nodes and time."""

    partition: str | None = None
    """Partition or queue; null for the default one."""
    account: str | None = None
    """Account that pays (Grid Engine, LSF: project); null for the user's default."""
    qos: str | None = None
    """Slurm's quality of service; null for the default."""
    parallel_environment: str | None = None
    """Grid Engine's parallel environment that gives each node all its slots; null for one slot."""
    gpus_per_node: int = Field(default=0, ge=0)
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
    nodelist: tuple[str, ...] = ()
    """Nodes that the job must get, such as `node[1-4]`."""
    exclude: tuple[str, ...] = ()
    """Nodes that the job must not get."""
    options: tuple[str, ...] = ()
    """Further options of the submit command, such as `--mail-type=FAIL`."""
    srun_options: tuple[str, ...] = ()
    """Further options of Slurm's `srun`, which starts one task a node, such as `--mpi=none`."""
    modules: tuple[str, ...] = ()
    """Environment modules that are loaded before the prologue, such as `cuda/12.4`."""
    prologue: tuple[str, ...] = ()
    """Shell lines that run on the first node before anything else, such as `ulimit -n 65536`."""
    epilogue: tuple[str, ...] = ()
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
    hosts: tuple[Annotated[Login, BeforeValidator(_as_login)], ...] = ()
    """Machines of backend `ssh`; a gang takes the first ones, and the very first holds its host."""
    login: Login | None = None
    """Login node where the commands run, over one SSH connection; null for this machine."""
    poll: Annotated[Seconds, Field(gt=0)] = 10.0
    """Time between two questions to the queue, which are for all leases of the site together."""
    submits_per_minute: int = Field(default=30, ge=1)
    """Most jobs that the leases of the site submit in a minute."""
    max_jobs: int | None = Field(default=None, ge=1)
    """Most jobs of the site that are in the queue at once, running ones too; null: Slurm's own."""
    max_queued: int | None = Field(default=None, ge=1)
    """Most jobs of the site that wait in the queue at once; null for no limit."""

    @model_validator(mode="after")
    def _check(self) -> Batch:
        if self.gpu_type and not self.gpus_per_node:
            raise ValueError("`gpu_type` says which, not how many; write `gpus_per_node`, too")
        return self


class Role(Part):
    """One kind of lease that this place gives out."""

    backend: Literal["local", "slurm", "pbs", "sge", "lsf", "ssh"] = "local"
    """What gives the machines: this one, Slurm, OpenPBS, Grid Engine, LSF, or `batch.hosts`."""
    batch: Batch = Batch()
    """What the batch system is asked for; the local backend has none."""
    kind: Literal["pool", "gang"] = "pool"
    """A pool grows and shrinks between 0 and `nodes`; a gang is exactly `nodes`, all or nothing."""
    host: Literal["control", "job"] = "control"
    """Where the host of a pool on a batch system runs: detached on this machine, or in a job."""
    host_options: tuple[str, ...] = ()
    """Options of the submit command for the host's job, which has one CPU: `--mem=4G`."""
    nodes: int = Field(default=1, ge=1)
    """Nodes of a gang, most nodes of a pool."""
    ranks_per_node: int = Field(default=1, ge=1)
    """Training ranks on each node."""
    threads_per_node: int = Field(default=1, ge=1)
    """Tasks that run at once on each node."""
    threads_per_rank: int = Field(default=1, ge=1)
    """Compute threads (OpenMP) of each rank."""
    lifetime: Seconds = 4 * 3600.0
    """The lease ends after this time, whatever it does; of a job, its time limit."""
    idle_stop: Seconds = 300.0
    """The lease ends after this time without a step."""
    start_timeout: Seconds = 120.0
    """The lease fails when its nodes are not there after this time; waiting in a queue is free."""
    keep_nodes: Seconds = 30.0
    """A pool gives back a node that had no work for this time."""
    node_lifetime: Annotated[Seconds, Field(gt=0)] | None = None
    """A pool on a batch system replaces its nodes by then; null for the lease's own lifetime."""
    env: dict[str, str] = {}
    """Environment variables of workers and ranks."""
    launcher: Literal["mpirun", "srun"] | None = None
    """One Open MPI `mpirun` or Slurm `srun` starts all ranks; null: each node its own."""
    launcher_options: tuple[str, ...] = ()
    """Further options of the launcher, such as `--mpi=pmix`."""

    @model_validator(mode="after")
    def _check(self) -> Role:
        if self.backend == "local" and self.batch != Batch():
            raise ValueError("backend 'local' has no queue; leave `batch` out or name another")
        refused, of_srun = reserved.OF_BACKEND.get(self.backend, ({}, {}))
        reserved.refuse("batch.options", self.batch.options, refused)
        reserved.refuse("host_options", self.host_options, refused)
        reserved.refuse("batch.srun_options", self.batch.srun_options, of_srun)
        given = self.batch.model_fields_set & {key for key, value in self.batch if value}
        reserved.refuse_missing(self.backend, given)
        reserved.refuse_twice(self.batch.options, given, reserved.KEYS.get(self.backend, {}))
        slots = self.cpus_per_node * (self.nodes if self.kind == "gang" else 1)
        if self.backend == "sge" and slots > 1 and not self.batch.parallel_environment:
            raise ValueError(
                f"{slots} slots need `batch.parallel_environment`; `qconf -spl` lists them"
            )
        return self

    @model_validator(mode="after")
    def _check_host(self) -> Role:
        if self.host == "job" and (self.backend == "local" or self.kind == "gang"):
            raise ValueError("`host: job` is for pools on a batch system; leave it out")
        if self.host_options and self.host != "job":
            raise ValueError("`host_options` are for `host: job`; leave them out or write that too")
        names = {each.host for each in self.batch.hosts}
        if self.backend != "ssh" and names:
            raise ValueError(f"`batch.hosts` is for backend 'ssh', not '{self.backend}'")
        if self.backend == "ssh" and self.kind != "gang":
            raise ValueError("backend 'ssh' gives gangs only; write `kind: gang`")
        if self.backend == "ssh" and len(names) < self.nodes:
            raise ValueError(
                f"{self.nodes} nodes need as many different `batch.hosts`; there are {len(names)}"
            )
        return self

    @model_validator(mode="after")
    def _check_launcher(self) -> Role:
        if self.launcher == "srun" and self.backend != "slurm":
            raise ValueError(f"launcher 'srun' needs backend 'slurm', not '{self.backend}'")
        if self.launcher_options and self.launcher is None:
            raise ValueError("`launcher_options` are for a `launcher`; name it, or leave them out")
        container = self.batch.container
        if self.launcher is not None and container is not None and container.runtime != "none":
            raise ValueError(f"'{self.launcher}' starts no ranks in a container; leave out one")
        return self

    @property
    def cpus_per_node(self) -> int:
        """CPUs that a batch system is asked for on each node."""
        return max(self.threads_per_node, self.ranks_per_node * self.threads_per_rank)


class Tier(Part):
    """A place on every node for staged shards."""

    name: Name
    """Name of the tier, such as `shm` or `nvme`."""
    folder: str
    """Folder on every node; `{user}` stands for the user's name."""
    budget: Bytes | None = None
    """Most bytes that staging may hold there; null for no limit but the free space."""
    reserve: Bytes | None = None
    """Bytes that stay free; null: 256 MiB, in memory a tenth of what is free if that is more."""


class StoreOptions(Part):
    """How S3 is reached; credentials come from the environment or AWS configuration, never here."""

    endpoint_url: str | None = None
    """Server other than AWS, such as `http://minio:9000`; null for `AWS_ENDPOINT_URL` or AWS."""
    region: str | None = None
    """Region; null for the one of the environment or profile, else `us-east-1`."""
    profile: str | None = None
    """Profile of the AWS configuration files; null for the environment's."""
    anonymous: bool = False
    """Read public buckets without credentials."""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    """Where the bucket's name goes; `auto`: in the path where an endpoint is given."""
    connections: int = Field(default=32, ge=1, le=256)
    """Requests that one process has under way at once."""
    max_attempts: int = Field(default=8, ge=1, le=50)
    """Times a request is tried when the server throttles, fails or cuts the connection."""
    timeout: Annotated[Seconds, Field(gt=0)] = 60.0
    """Time without a byte from the server after which a request counts as failed."""

    @model_validator(mode="after")
    def _check(self) -> StoreOptions:
        no_credentials("endpoint_url", self.endpoint_url)
        return self


class Limits(Part):
    """What this place allows."""

    max_leases: int = Field(default=4, ge=1)
    """Leases open at once; further ones wait."""
    step_poll: Annotated[Seconds, Field(gt=0)] = 1.0
    """Time between two looks at a running step."""
    heartbeat: Annotated[Seconds, Field(gt=0)] = 2.0
    """Time between two heartbeats of a lease."""
    lost_after: Annotated[Seconds, Field(gt=0)] = 20.0
    """A lease without a heartbeat for this time counts as lost."""


class Site(Part):
    """One site: roles, storage tiers, limits and what recipes may import."""

    name: Name
    """Name of the site."""
    folder: str
    """Folder that the control side and all nodes see: runs, leases, datasets."""
    roles: dict[Name, Role]
    """Kinds of lease by name; recipes ask for `cpu` and `gpu` unless they say otherwise."""
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1)]
    """Node-local storage, fastest first."""
    allowed_targets: tuple[str, ...] = (
        "headrace.data.transforms",
        "headrace.examples",
        "torch.nn",
        "torch.optim",
        "torchmetrics",
        "lightning.pytorch",
    )
    """Module prefixes that a recipe's `_target_` may name."""
    allowed_code: tuple[str, ...] = ()
    """Folders from which a recipe's `code` and `train.script` may be taken."""
    limits: Limits = Limits()
    """What this place allows."""
    s3: StoreOptions = StoreOptions()
    """How `s3://` sources, datasets and targets are reached."""

    @model_validator(mode="after")
    def _check(self) -> Site:
        names = [tier.name for tier in self.tiers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"more than one of the tiers is named '{twice[0]}'; give each its own name"
            )
        return self
