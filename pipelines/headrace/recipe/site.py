"""The site: how this place gives out machines and storage."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails

from headrace.errors import SiteError
from headrace.recipe.backend import backend_of, known, option_blocks, refused
from headrace.recipe.base import (
    Amount,
    AmountFrom0,
    Bytes,
    Lifetime,
    Member,
    Name,
    Parallel,
    PositiveSeconds,
    Problems,
    Seconds,
    Settings,
    Texts,
    Times,
)
from headrace.recipe.batch import Batch, Container, Service

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
Secrets = Annotated[
    dict[
        Annotated[str, Field(pattern=f"^{_VARIABLE}$")],
        Annotated[
            str,
            Field(
                pattern=rf"^(airflow:\S+\.[A-Za-z0-9_-]+|env:{_VARIABLE}|file:\S.*)$",
                description="airflow:CONNECTION.FIELD, env:VARIABLE or file:PATH, never a value",
            ),
        ],
    ],
    Field(description="a mapping of VARIABLE: SOURCE"),
]
"""Sources of secrets by the names of environment variables."""


class NodePrice(Settings):
    """Price of a node, the sum of its rates; waiting in a queue costs nothing."""

    usd_per_node_hour: AmountFrom0 | None = None
    """US dollars an hour for each node."""
    usd_per_gpu_hour: AmountFrom0 | None = None
    """US dollars an hour for each of its `batch.gpus_per_node`."""
    usd_per_core_hour: AmountFrom0 | None = None
    """US dollars an hour for each requested CPU."""
    usd_licences_per_node_hour: AmountFrom0 | None = None
    """US dollars an hour for software licences on each node."""
    source: str = "site file"
    """Source of the price, which the ledger keeps with it."""
    as_of: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    """Date of the price, such as `2026-06-17`."""

    def problems(self) -> Problems:
        """Yield that it lacks a rate."""
        rates = (self.usd_per_node_hour, self.usd_per_gpu_hour, self.usd_per_core_hour)
        if all(rate is None for rate in rates):
            yield ("no rate is given; write `usd_per_node_hour`, `usd_per_gpu_hour` or "
                   "`usd_per_core_hour`, which may be 0")  # fmt: skip

    def usd_per_hour(self, gpus: int, cpus: int) -> float:
        """Return US dollars an hour of a node with a number of GPUs and CPUs."""
        node = (self.usd_per_node_hour or 0.0) + (self.usd_licences_per_node_hour or 0.0)
        cores = cpus * (self.usd_per_core_hour or 0.0)
        return node + gpus * (self.usd_per_gpu_hour or 0.0) + cores


class SitePrices(Settings):
    """Prices of storage and transfer, for `headrace cost`; a GB has 10⁹ bytes."""

    usd_per_gb_month: AmountFrom0 | None = None
    """US dollars for a month of each GB of packed datasets."""
    usd_per_fetched_gb: AmountFrom0 | None = None
    """US dollars for each GB read from an object store."""
    usd_per_staff_hour: AmountFrom0 | None = None
    """Has no effect: sites of earlier releases have it."""


class Role(Settings):
    """One kind of lease that this place gives out."""

    model_config = ConfigDict(extra="allow")  # options of its backend, under the backend's name

    backend: Annotated[Name, AfterValidator(known)] = "local"
    """What gives the machines: `local`, this one; `slurm`; `pbs`, OpenPBS; `sge`, Grid Engine;
    `lsf`; `ssh`, `batch.hosts`; `ec2`; or what another package adds."""
    batch: Batch = Batch()
    """What the batch system is asked for; the local backend has none."""
    kind: Literal["pool", "gang"] = "pool"
    """A pool grows and shrinks between 0 and `nodes`; a gang is exactly `nodes`, all or nothing."""
    host: Literal["control", "job"] = "control"
    """Where the host of a pool on a batch system runs: detached on this machine, or in a job."""
    host_options: Texts = ()
    """Options of the submit command for the host's job, which has one CPU: `--mem=4G`."""
    nodes: Parallel = 1
    """Nodes of a gang, most nodes of a pool."""
    ranks_per_node: Parallel = 1
    """Training ranks on each node."""
    ranks_per_node_max: Parallel | None = None
    """Most of them that a recipe may ask for; null: in a terminal as many as the node has GPUs, or
    eight for each CPU; from Airflow and its pages `ranks_per_node`."""
    threads_per_node: Parallel = 1
    """Tasks that run at once on each node."""
    threads_per_rank: Parallel = 1
    """Compute threads (OpenMP) of each rank."""
    lifetime: Lifetime = 4 * 3600.0
    """The lease ends after this time, whatever it does; of a job, its time limit. With a queue also
    `auto`: headrace chooses the time limit from earlier runs; of a pool, that of its nodes."""
    lifetime_max: PositiveSeconds | None = None
    """The longest time that `lifetime: auto` may choose; null for the queue's own, else a day."""
    idle_stop: Seconds = 300.0
    """The lease ends after this time without a step."""
    keep_warm: Seconds = 300.0
    """This machine keeps what its leases had to import for this time after the last one, in
    processes that the next one's are forked from; 0 for none. Other backends keep nothing."""
    start_timeout: Seconds = 120.0
    """The lease fails when its nodes are not there after this time; waiting in a queue is free."""
    keep_nodes: Seconds = 30.0
    """A pool gives back a node that had no work for this time."""
    node_lifetime: PositiveSeconds | None = None
    """A pool on a batch system replaces its nodes by then; null for the lease's own lifetime."""
    price: NodePrice | None = None
    """Price of a node; null: unknown, and only the time of its nodes is counted. Instances
    of `ec2` have `ec2.prices`."""
    env: dict[str, str] = {}
    """Environment variables of workers and ranks."""
    launcher: Literal["mpirun", "srun"] | None = None
    """One Open MPI `mpirun` or Slurm `srun` starts all ranks; null: each node its own."""
    launcher_options: Texts = ()
    """Further options of the launcher, such as `--mpi=pmix`."""
    services: Annotated[dict[Name, Service], Field(max_length=20)] = {}
    """Services that its leases start for their steps, by name."""

    def model_post_init(self, _: object) -> None:
        """Read the options of its backend by the model of these."""
        given = self.__pydantic_extra__ or {}
        for key, value in tuple(given.items()):
            options = backend_of(self.backend).options if key == self.backend else None
            if options is None and key not in option_blocks():
                unknown = InitErrorDetails(type="extra_forbidden", loc=(key,), input=value)
                raise ValidationError.from_exception_data("Role", [unknown])
            if value is None:  # roles of leases of earlier releases have `ec2: null`
                del given[key]
            elif options is None:
                raise ValueError(f"backend '{key}' and the key `{key}` go together; write both or "
                                 "neither")  # fmt: skip
            else:  # a mapping, so that errors have the key in their place
                given |= TypeAdapter(dict[str, options]).validate_python({key: value})  # type: ignore[valid-type]

    def problems(self) -> Problems:
        """Yield keys that the backend lacks, and options that contradict other keys."""
        yield from self._asking()
        if self.price and self.price.usd_per_gpu_hour and not self.batch.gpus_per_node:
            yield ("`price.usd_per_gpu_hour` needs `batch.gpus_per_node`; write that, too, or "
                   "`price.usd_per_node_hour`")  # fmt: skip
        if self.host_options and self.host != "job":
            yield "`host_options` are for `host: job`; leave them out or write that too"
        if self.batch.submit_as and (self.kind, self.host) == ("pool", "control"):
            yield "`batch.submit_as` needs `host: job`, since hosts run users' code"
        if self.launcher_options and self.launcher is None:
            yield "`launcher_options` are for a `launcher`; name it, or leave them out"
        if self.services and (self.kind, self.host) == ("pool", "control") and not self.is_here:
            yield "`services` run beside the host; write `host: job`, or `kind: gang`"
        is_auto = isinstance(self.lifetime, str)
        if is_auto and self.shares_machines:
            yield f"backend '{self.backend}' has no queue; write `lifetime` as a time"
        if is_auto and self.node_lifetime is not None:
            yield "`lifetime: auto` chooses `node_lifetime`, too; leave that out"
        if self.lifetime_max is not None and not is_auto:
            yield "`lifetime_max` goes with `lifetime: auto`; leave it out"

    def _asking(self) -> Problems:
        """Yield what its backend cannot give."""
        name, batch, backend = self.backend, self.batch, backend_of(self.backend)
        if self.is_here and batch != Batch():
            yield f"backend '{name}' has no queue; leave `batch` out or name another"
        given = {key for key, value in batch if value} & batch.model_fields_set
        yield from refused("batch.options", batch.options, backend.refuses)
        yield from refused("host_options", self.host_options, backend.refuses)
        for key in sorted(given & backend.lacks.keys()):
            yield f"backend '{name}' has no `batch.{key}`: {backend.lacks[key]}"
        by_key = {backend.sets.get(key, ""): f"`batch.{key}` says it already" for key in given}
        yield from refused("batch.options", batch.options, by_key)
        backend.check_role(self)
        if self.host == "job" and (self.kind == "gang" or not backend.hosts_in_jobs):
            yield "`host: job` is for pools on a batch system; leave it out"
        if batch.hosts and not backend.takes_hosts:
            yield f"`batch.hosts` is for backend 'ssh', not '{name}'"
        if self.kind not in backend.kinds:
            (kind,) = backend.kinds
            yield f"backend '{name}' gives {kind}s only; write `kind: {kind}`"
        if self.launcher is not None and self.launcher not in backend.launchers:
            yield f"launcher '{self.launcher}' needs backend 'slurm', not '{name}'"

    @property
    def containers(self) -> tuple[Container, ...]:
        """Containers of its ranks and services."""
        found = (self.batch.container, *(each.container for each in self.services.values()))
        return tuple(each for each in found if each is not None and each.runtime != "none")

    @property
    def own_options(self) -> Any:
        """Options of its backend, a record of its model of options; None where it has none."""
        return (self.__pydantic_extra__ or {}).get(self.backend)

    @property
    def lifetime_s(self) -> float:
        """`lifetime` in seconds; raise SiteError if it is `auto` and no time is chosen yet."""
        if isinstance(self.lifetime, str):
            raise SiteError("No time has been chosen yet for `lifetime: auto`")
        return self.lifetime

    @property
    def leaves_nodes_out(self) -> bool:
        """Whether its jobs can be kept off nodes on which others have failed."""
        return backend_of(self.backend).leaves_nodes_out()

    @property
    def shares_machines(self) -> bool:
        """Whether no queue keeps others off its machines."""
        return backend_of(self.backend).shares_machines

    @property
    def has_queue(self) -> bool:
        """Whether leases wait in a queue that gives each job a time limit."""
        return backend_of(self.backend).has_queue

    @property
    def is_here(self) -> bool:
        """Whether its nodes are this machine: ready within seconds, and free."""
        return backend_of(self.backend).is_here

    @property
    def cpus_per_node(self) -> int:
        """CPUs that a batch system is asked for on each node."""
        return max(self.threads_per_node, self.ranks_per_node * self.threads_per_rank)


class Tier(Settings):
    """A place on every node for staged shards, or memory of the GPUs for the training split."""

    name: Name
    """Name of the tier, such as `shm` or `nvme`; `gpu` is the memory of each rank's GPU."""
    folder: str = ""
    """Folder on every node, closed to other users, `{user}` for the user's name; `gpu` has none."""
    budget: Bytes | None = None
    """Most bytes held there, on a GPU by each rank; null for no limit but the free space."""
    reserve: Bytes | None = None
    """Bytes that stay free, in memory besides those for batches; null: 256 MiB, in memory a tenth
    of what is free if that is more."""
    keep: PositiveSeconds | None = None
    """A copy is removed when it was unused for this time; null: a day in memory, else a week."""


class StoreOptions(Settings):
    """How S3 is reached; credentials come from the environment or AWS configuration, never here.

    Of other object stores, `anonymous` and `connections` count; the rest is up to their packages.
    """

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
    """Most requests of a process at the same time."""
    max_attempts: int = Field(default=8, ge=1, le=50)
    """Times a request is tried when the server throttles, fails or cuts the connection."""
    timeout: PositiveSeconds = 60.0
    """Time without a byte from the server after which a request counts as failed."""


class Limits(Settings):
    """What this place allows."""

    max_leases: Parallel = 4
    """Leases open at once; further ones wait, and get places in turn: first the user with fewest
    open ones, then who has taken least of the site this month, then who waits longest."""
    leases_user: Parallel | None = None
    """Most open leases of a user; further ones wait. Null: no limit."""
    step_poll: PositiveSeconds = 1.0
    """Time between two looks at a running step."""
    heartbeat: PositiveSeconds = 2.0
    """Time between two heartbeats of a lease."""
    lost_after: PositiveSeconds = 20.0
    """A lease without a heartbeat for this time counts as lost."""
    budget: Amount | None = None
    """Most US dollars that a run may cost, all leases and attempts together: how many of these it
    takes is unknown beforehand. Machines with a price are counted, see `price` and `ec2.prices`
    of roles. A run that comes to it gets no further lease, and its leases end: training with a
    checkpoint. Null: no limit."""
    budget_month: Amount | None = None
    """The same for all runs of this site in a month (UTC) together."""
    budget_user: Amount | None = None
    """The same for all runs of this site that a user requested in a month."""
    budget_team: Amount | None = None
    """The same for those of the users of a team together, for each team."""
    gpu_hours_user: Amount | None = None
    """Most hours of GPUs of this site that one user may hold in a month (UTC), busy or not, by
    `batch.gpus_per_node` of roles; kept as budgets are."""
    gpu_hours_team: Amount | None = None
    """The same for the users of a team together, for each team."""
    when_over: Literal["stop", "finish"] = "stop"
    """What a run does that comes to a budget: `stop` ends its leases in order; `finish` lets the
    steps and trials that run come to their end, and begins no more."""


class RetentionRule(Settings):
    """What is removed: what has ended and nothing needs, except what these keys keep."""

    older_than: Seconds | None = None
    """Only runs that ended, and files that were last used, longer ago, as in `30d`."""
    keep_last: Times | None = None
    """The newest runs of each recipe that stay."""
    keep_best: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[^:\s]+(:(min|max))?$")], ...], Field(max_length=100)
    ] = ()
    """The best run of each recipe by these metrics stays: `accuracy`, `my_score:max`. A metric that
    is neither built in nor monitored needs `:min` (lower is better) or `:max`."""
    keep_tags: Texts = ()
    """Runs with one of these tags stay; those with a star or the tag `keep` always do."""
    unreferenced: bool = False
    """Datasets that no run refers to go, however old."""


class Site(Settings):
    """One site: roles, storage tiers, limits and what recipes may import."""

    name: Name
    """Name of the site."""
    folder: Annotated[str, Field(min_length=1)]
    """Folder that the control side and all nodes see: runs, leases, datasets; with `{user}` each
    user has one: the account in a terminal, in Airflow who triggers."""
    accounts: dict[str, str] = {}
    """Unix accounts of users whose names in Airflow differ, such as `ada@lab.org: ada`."""
    roles: dict[Name, Role]
    """Kinds of lease by name; recipes ask for `cpu` and `gpu` unless they say otherwise."""
    all_tiers: tuple[Tier, ...] = Field(alias="tiers", min_length=1, max_length=100)
    """Node-local storage, fastest first; above it may stand `gpu`, without a folder."""
    allowed_users: Annotated[tuple[Member, ...], Field(max_length=100_000)] | None = None
    """Who may run anything here: users, and teams of `teams.yaml` as `@team`. Under Airflow those
    who trigger DAG runs, in a terminal accounts. Null: everybody."""
    is_fenced: bool = True
    """Whether a run may use only the code and places that the next four keys allow; false for runs
    from a terminal, whose user has the rights of the account. Without effect in a site's file."""
    allowed_targets: Texts = ("headrace.data.transforms", "headrace.examples.digits_model")
    """Classes and functions that a recipe's `_target_` may name besides classes of PyTorch,
    TorchMetrics and Lightning that belong where it stands: whole names, and packages of others.
    From a terminal every name may be used."""
    allowed_code: Texts = ()
    """Folders from which a recipe's `code` and `train.script` may be taken; from a terminal all."""
    allowed_sources: Texts = ()
    """Folders and prefixes of object stores that recipes may read, besides the datasets of this
    site; from a terminal all."""
    allowed_outputs: Texts = ()
    """Folders and prefixes of object stores that `pack.target`, `trainer.checkpoint_target` and
    arguments of the Trainer, its callbacks and loggers may name, besides the datasets of this site;
    from a terminal all."""
    pickled_checkpoints: Literal["refuse", "allow"] = "refuse"
    """Whether checkpoints may hold objects of any class, whose unpickling runs code of theirs."""
    limits: Limits = Limits()
    """What this place allows."""
    retention: RetentionRule | None = None
    """What the DAG `headrace_clean` removes each day, if anything."""
    prices: SitePrices = SitePrices()
    """Prices of storage and transfer; machines have the `price` of their role."""
    s3: StoreOptions = StoreOptions()
    """How sources, datasets and targets on S3 and in other object stores are reached."""
    secrets: Secrets = {}
    """Environment variables of steps, workers and ranks whose values are asked for as a lease
    starts: `airflow:CONNECTION.FIELD`, `env:VARIABLE` or `file:PATH`; `{user}` stands for who asked
    for the run. No value is written here, into a job or into a record."""

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those with folders, fastest first."""
        return tuple(tier for tier in self.all_tiers if tier.folder)

    @property
    def gpu_tier(self) -> Tier | None:
        """The first one if it has no folder: memory of GPUs."""
        return None if self.all_tiers[0].folder else self.all_tiers[0]

    def problems(self) -> Problems:
        """Yield tiers and variables that exclude each other."""
        bare = [tier.name for tier in self.all_tiers if not tier.folder]
        if bare not in ([], ["gpu"]) or (bare and self.gpu_tier is None) or not self.tiers:
            yield (f"tier '{bare[-1]}' has no folder: only a first tier `gpu`, memory of GPUs, has "
                   "none, and tiers with a folder follow")  # fmt: skip
        names = [tier.name for tier in self.all_tiers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield f"more than one of the tiers is named '{twice[0]}'; give each its own name"
        for name, role in self.roles.items():
            if both := sorted(self.secrets.keys() & role.env.keys()):
                yield (f"'{both[0]}' is in `secrets` and in `env` of role {name}; leave it out of "
                       "one")  # fmt: skip
        whose = {role.batch.submit_as for role in self.roles.values()}
        if "{user}" in whose and "{user}" not in self.folder:
            yield "`batch.submit_as` needs `{user}` in `folder`: one for each user"
