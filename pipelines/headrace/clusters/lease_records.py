"""The files of a lease folder as frozen records: what is asked for, what there is, the end."""

from __future__ import annotations

import hashlib
import json
import math
import time
from datetime import timedelta

from pydantic import Field

from headrace.batch.job_records import JobView
from headrace.files.atomic import read_text
from headrace.files.layout import LeaseFolder
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.site import Role, Site, Tier
from headrace.record import Record
from headrace.states import EndedJob, LeaseState

FLOOR_S = 600.0
"""No shorter time limit is chosen, unless the queue gives no more."""

MOST_S = 86_400.0
"""No longer one is chosen where neither the site nor the queue sets a limit."""


def shown(seconds: float) -> str:
    """A time for people, as in `1:05:00`."""
    return str(timedelta(seconds=math.ceil(seconds)))


class Walltime(Record):
    """A time limit that headrace has chosen (`lifetime: auto`)."""

    seconds: float
    """Time limit of the lease's job; of a pool, of the jobs of its nodes."""
    most_s: float
    """The longest time that could have been chosen, seconds."""
    why: str
    """What it was chosen from, for the user."""

    def of(self, role: Role) -> Role:
        """The role with this time in place of `auto`; a pool itself lasts as long as it may."""
        times: dict[str, float | None] = {"lifetime": self.seconds, "lifetime_max": None}
        if role.kind == "pool":
            times |= {"lifetime": self.most_s, "node_lifetime": self.seconds}
        return role.model_copy(update=times)


class LeaseSpec(Record):
    """What was asked for (`spec.json`); written once, before the host starts."""

    lease_id: str
    """Identity of the lease, and name of its folder."""
    key: str
    """Who the lease is for, `<run_id>/<role>`: asking twice gives one lease."""
    run_id: str
    """The run the lease belongs to; empty when it serves none."""
    role_name: str
    role: Role
    heartbeat_s: float = Field(default=2.0, gt=0)
    lost_after_s: float = Field(default=20.0, gt=0)
    """Seconds without a heartbeat after which the lease counts as lost."""
    owner: ProcessIdentity | None = None
    """The lease ends when this process has gone; null when the lease outlives its maker."""
    code: tuple[str, ...] = ()
    """Folders put in front of the module path of drivers, workers and ranks."""
    code_sources: tuple[str, ...] = ()
    """Folders that copies of the code link to."""
    tiers: tuple[Tier, ...] = ()
    """Storage of the nodes, which they look at before work starts."""
    walltime: Walltime | None = None
    """How the role's `lifetime` was chosen; null where the site says it."""
    exclude: tuple[str, ...] = ()
    """Nodes that earlier leases of the run have failed on; it gets none of them."""
    preload: tuple[str, ...] = ()
    """Modules that its workers load as they start; Dask calls their `dask_setup(worker)`."""

    @classmethod
    def of_this_process(
        cls, folder: LeaseFolder, site: Site, role_name: str, role: Role
    ) -> LeaseSpec:
        """A lease of no run, that ends with this process."""
        return cls(
            lease_id=folder.lease_id,
            key=folder.lease_id,
            run_id="",
            role_name=role_name,
            role=role,
            heartbeat_s=site.limits.heartbeat,
            owner=ProcessIdentity.of(),
            tiers=site.tiers,
        )


class HostRecord(Record):
    """The host process of a lease (`host.json`); written by the host itself, after a heartbeat."""

    process: ProcessIdentity
    started_at: float = Field(default_factory=time.time)
    """When it started, seconds since the epoch."""
    ends_at: float | None = None
    """When the lease ends at the latest, seconds since the epoch; null when it never began."""


class LeaseInfo(Record):
    """What there is (`lease.json`); published when all machines asked for are there."""

    lease_id: str
    backend: str
    job_ids: tuple[str, ...] = ()
    """Ids that the outside world knows the machines by; empty for the local backend."""
    host: ProcessIdentity
    scheduler_address: str
    dashboard_url: str
    nodes: int
    """Nodes of a gang, most nodes of a pool."""
    ready_at: float
    """When the lease became ready, seconds since the epoch."""


class Waiting(Record):
    """Why a lease has no job yet (`waiting.json`); written anew each time it is asked for."""

    reason: str
    at: float = Field(default_factory=time.time)
    """When that was so, seconds since the epoch."""


class BadNodes(Record):
    """Nodes that a lease, or jobs of it, failed on (`bad-nodes.json`)."""

    nodes: tuple[str, ...]
    """Their names, as the batch system knows them."""
    why: str


class PoolJobView(Record):
    """A job that is, or will be, a node of a pool, for the user."""

    node: str
    """Its name, as in `node-0`."""
    job_id: str
    stage: str
    """How far the node has come: queued, starting, idle, busy or leaving."""
    why: str
    """How the job stands, for the user: why it waits."""


class AvoidedNode(Record):
    """A node that further jobs of a pool must not get."""

    node: str
    """Its name, as the batch system knows it."""
    why: str


class PoolJobs(Record):
    """Jobs of a pool; empty for a gang, and without a queue."""

    jobs: tuple[PoolJobView, ...] = ()
    """Jobs that have not ended, in order of their nodes."""
    waits_for: str = ""
    """Why it has fewer nodes than it has work for; empty if it has enough."""
    ended: tuple[EndedJob, ...] = ()
    """Jobs that ended by themselves, the newest last, at most twenty."""
    avoids: tuple[AvoidedNode, ...] = ()
    """Nodes on which jobs failed; further jobs do not run there."""
    takes_all: str = ""
    """Why it uses nodes that it would avoid; empty if it avoids them."""


class PoolRecord(PoolJobs):
    """State of a pool (`pool.json`); written by the host when something changes."""

    starts_at: float | None = None
    """When the next node is expected, seconds since the epoch; null when that is not known."""
    first_node_at: float | None = None
    """When its first node was there, seconds since the epoch; null until then."""
    failure: JobView | None = None
    """Why it can have no nodes at all; null as long as it can."""

    @property
    def num_here(self) -> int:
        """Nodes that are there, to work and not to leave."""
        return sum(job.stage in ("idle", "busy") for job in self.jobs)


def service_variables(folder: LeaseFolder) -> dict[str, str]:
    """Return the environment variables with the addresses of a lease's services."""
    return dict(json.loads(read_text(folder.services) or "{}"))


SERVICE = "Service "
"""Begin of the reason of a lease whose service failed."""


class Ending(Record):
    """How a lease ended (`closed`)."""

    state: LeaseState
    """Closed, failed or lost."""
    reason: str
    at: float = Field(default_factory=time.time)
    """When, seconds since the epoch."""


def job_name(folder: LeaseFolder) -> str:
    """Name of a lease's job: the lease's id, and a mark of the folder it lies in."""
    place = hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:8]
    return f"headrace-{folder.lease_id}-{place}"
