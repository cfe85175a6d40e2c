"""Where things lie: the folders of a site, a run, a lease and a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StepFolder:
    """One attempt at a step: `leases/<lease_id>/steps/<number>/`."""

    path: Path

    @property
    def spec(self) -> Path:
        """Input, immutable."""
        return self.path / "spec.json"

    @property
    def status(self) -> Path:
        """Replaced every second by the step driver."""
        return self.path / "status.json"

    @property
    def events(self) -> Path:
        """Structured events, append-only JSON lines."""
        return self.path / "events.jsonl"

    @property
    def result(self) -> Path:
        """Written once, atomically, last."""
        return self.path / "result.json"

    @property
    def exit(self) -> Path:
        """Exit code of the driver, written by the host after the driver ended."""
        return self.path / "exit.json"

    @property
    def cancel(self) -> Path:
        """Its presence asks the step to stop; its text says who asked and why."""
        return self.path / "cancel"

    @property
    def logs(self) -> Path:
        """Folder of `driver.log`, `rank-<r>.log`, `predictor-<worker>.log`, …."""
        return self.path / "logs"

    @property
    def parts(self) -> Path:
        """Folder of intermediate files that the step's own workers share."""
        return self.path / "parts"

    @property
    def number(self) -> int:
        """Number of the step in its lease, from 1."""
        return int(self.path.name)


@dataclass(frozen=True)
class LeaseFolder:
    """`leases/<lease_id>/`."""

    path: Path

    @property
    def spec(self) -> Path:
        """What was asked for; written by the control side before the host starts."""
        return self.path / "spec.json"

    @property
    def info(self) -> Path:
        """What there is: addresses, job ids; published by the host when the lease is ready."""
        return self.path / "lease.json"

    @property
    def host(self) -> Path:
        """Identity of the host process; written by the host, after its first heartbeat."""
        return self.path / "host.json"

    @property
    def job(self) -> Path:
        """The batch system's job that gives the machines; absent where there is no queue."""
        return self.path / "job.json"

    @property
    def preflight(self) -> Path:
        """Folder of what the nodes of a gang found out about themselves, by place."""
        return self.path / "preflight"

    @property
    def cause(self) -> Path:
        """How the job of a lost lease ended, once the batch system has told."""
        return self.path / "cause.json"

    @property
    def bad_nodes(self) -> Path:
        """Nodes on which the lease failed; absent when none is to blame."""
        return self.path / "bad-nodes.json"

    @property
    def waiting(self) -> Path:
        """Why no job was submitted yet; absent when one was, or nobody has asked for it."""
        return self.path / "waiting.json"

    @property
    def jobs(self) -> Path:
        """Records and logs of the jobs that are the nodes of a pool, by number."""
        return self.path / "jobs"

    @property
    def pool(self) -> Path:
        """How those jobs stand, and why there can be no more; written by the host."""
        return self.path / "pool.json"

    @property
    def tls(self) -> Path:
        """Folder of the key and certificate of the Dask cluster."""
        return self.path / "tls"

    @property
    def start_lock(self) -> Path:
        """Locked by whoever is starting the host, or submitting its job."""
        return self.path / ".start.lock"

    @property
    def lock(self) -> Path:
        """Locked by the host as long as it lives, so that there is never a second one."""
        return self.path / ".host.lock"

    @property
    def heartbeat(self) -> Path:
        """Rewritten by the host every few seconds."""
        return self.path / "heartbeat"

    @property
    def steps(self) -> Path:
        """The mailbox: numbered step folders."""
        return self.path / "steps"

    @property
    def close(self) -> Path:
        """Its presence asks the host to end; its text says why."""
        return self.path / "close"

    @property
    def closed(self) -> Path:
        """Written by the host as its last act; its text says why it ended."""
        return self.path / "closed"

    @property
    def log(self) -> Path:
        """Log of the host."""
        return self.path / "host.log"

    @property
    def scheduler_file(self) -> Path:
        """Dask's scheduler file."""
        return self.path / "scheduler.json"

    @property
    def lease_id(self) -> str:
        """Identity of the lease."""
        return self.path.name

    def step(self, number: int) -> StepFolder:
        """Folder of the step with this number (from 1)."""
        return StepFolder(self.steps / f"{number:06d}")


@dataclass(frozen=True)
class RunFolder:
    """`runs/<run_id>/`."""

    path: Path

    @property
    def run_id(self) -> str:
        """Identity of the run."""
        return self.path.name

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.json"

    @property
    def site(self) -> Path:
        """The resolved site."""
        return self.path / "site.json"

    @property
    def request(self) -> Path:
        """Who asked for what."""
        return self.path / "request.json"

    @property
    def provenance(self) -> Path:
        """Git commit, versions, command, host."""
        return self.path / "provenance.json"

    @property
    def skipped(self) -> Path:
        """Damaged shards that the run does without."""
        return self.path / "skipped.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of training checkpoints."""
        return self.path / "checkpoints"

    @property
    def soundness(self) -> Path:
        """Folder of what is known of the data that training has read."""
        return self.path / "soundness"

    @property
    def report(self) -> Path:
        """Folder of the evaluation report."""
        return self.path / "report"

    @property
    def tensorboard(self) -> Path:
        """Folder for loggers."""
        return self.path / "loggers"


@dataclass(frozen=True)
class SiteFolder:
    """The shared folder of a site, seen by the control side and all nodes."""

    path: Path

    def run(self, run_id: str) -> RunFolder:
        """Folder of a run."""
        return RunFolder(self.path / "runs" / run_id)

    def lease(self, lease_id: str) -> LeaseFolder:
        """Folder of a lease."""
        return LeaseFolder(self.path / "leases" / lease_id)

    @property
    def leases(self) -> Path:
        """Folder of all leases."""
        return self.path / "leases"

    @property
    def datasets(self) -> Path:
        """Folder of packed datasets."""
        return self.path / "datasets"
