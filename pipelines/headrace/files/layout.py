"""Where things lie: the folders of a site, a run, a lease and a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Folder:
    """A folder whose files have fixed names."""

    path: Path


class Entry:
    """A name in such a folder, as an attribute: a `Path`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Folder, kind: type) -> Path:
        return folder.path / self._name


class StepFolder(Folder):
    """One attempt at a step: `leases/<lease_id>/steps/<number>/`."""

    spec = Entry("spec.json")
    """Input, immutable."""
    status = Entry("status.json")
    """Replaced every second by the step driver."""
    events = Entry("events.jsonl")
    """Structured events, append-only JSON lines."""
    result = Entry("result.json")
    """Written once, atomically, last."""
    exit = Entry("exit.json")
    """Exit code of the driver, written by the host after the driver ended."""
    cancel = Entry("cancel")
    """Its presence asks the step to stop; its text says who asked and why."""
    reading = Entry("reading")
    """The file of samples that the driver reads; absent when it reads none."""
    waits = Entry("waits")
    """What an attempt waits for that is about to begin; absent when for nothing."""
    logs = Entry("logs")
    """Folder of `driver.log`, `rank-<r>.log`, `predictor-<worker>.log`, …."""
    parts = Entry("parts")
    """Folder of intermediate files that the step's own workers share."""

    @property
    def number(self) -> int:
        """Number of the step in its lease, from 1."""
        return int(self.path.name)


class LeaseFolder(Folder):
    """`leases/<lease_id>/`."""

    spec = Entry("spec.json")
    """What was asked for; written by the control side before the host starts."""
    info = Entry("lease.json")
    """What there is: addresses, job ids; published by the host when the lease is ready."""
    host = Entry("host.json")
    """Identity of the host process; written by the host, after its first heartbeat."""
    job = Entry("job.json")
    """The batch system's job that gives the machines; absent where there is no queue."""
    preflight = Entry("preflight")
    """Folder of what the nodes of a gang found out about themselves, by place."""
    cause = Entry("cause.json")
    """How the job of a lost lease ended, once the batch system has told."""
    bad_nodes = Entry("bad-nodes.json")
    """Nodes on which the lease failed; absent when none is to blame."""
    waiting = Entry("waiting.json")
    """Why no job was submitted yet; absent when one was, or nobody has asked for it."""
    jobs = Entry("jobs")
    """Records and logs of the jobs that are the nodes of a pool, by number."""
    nodes = Entry("nodes.jsonl")
    """When its nodes were there, joined and left, append-only; written by the host."""
    pool = Entry("pool.json")
    """How those jobs stand, and why there can be no more; written by the host."""
    tls = Entry("tls")
    """Folder of the key and certificate of the Dask cluster."""
    key = Entry("tls/key.pem")
    """The key itself: whoever can read it may use the lease."""
    certificate = Entry("tls/certificate.pem")
    """The certificate of that key, which the lease's processes trust alone."""
    secrets = Entry("tls/secrets.json")
    """Environment variables of the site's `secrets`; there while the lease is, as its key."""
    start_lock = Entry(".start.lock")
    """Locked by whoever is starting the host, or submitting its job."""
    lock = Entry(".host.lock")
    """Locked by the host as long as it lives, so that there is never a second one."""
    heartbeat = Entry("heartbeat")
    """Rewritten by the host every few seconds."""
    notice = Entry("notice")
    """Written on a node of a gang whose machines are about to be taken away; its text says why."""
    at_risk = Entry("at-risk")
    """Written on a node of a gang whose machines may be taken away soon; its text says why."""
    steps = Entry("steps")
    """The mailbox: numbered step folders."""
    close = Entry("close")
    """Its presence asks the host to end; its text says why."""
    closed = Entry("closed")
    """Written by the host as its last act; its text says why it ended."""
    log = Entry("host.log")
    """Log of the host."""
    scheduler_file = Entry("scheduler.json")
    """Dask's scheduler file."""

    @property
    def lease_id(self) -> str:
        """Identity of the lease."""
        return self.path.name

    def step(self, number: int) -> StepFolder:
        """Folder of the step with this number (from 1)."""
        return StepFolder(self.steps / f"{number:06d}")


def checkpoint_name(step: int) -> str:
    """File name of the checkpoint after so many optimizer steps."""
    return f"step-{step:09d}.ckpt"


def kept_name(step: int) -> str:
    """File name of the weights that are kept for evaluation, after so many optimizer steps."""
    return f"kept-{step:09d}.ckpt"


class RunFolder(Folder):
    """`runs/<run_id>/`."""

    recipe = Entry("recipe.json")
    """The resolved recipe."""
    site = Entry("site.json")
    """The resolved site."""
    request = Entry("request.json")
    """Who asked for what."""
    prediction = Entry("prediction.json")
    """What the run was expected to take when it began."""
    eta = Entry("eta.json")
    """The end that was told last; absent until it has moved far from the one foreseen."""
    informing = Entry("informing.jsonl")
    """Failures of parts that only inform, append-only; absent without any."""
    provenance = Entry("provenance.json")
    """Git commit, versions, command, host."""
    diff = Entry("working-tree.diff")
    """What was not committed; absent without any."""
    skipped = Entry("skipped.json")
    """Damaged shards that the run does without."""
    checkpoints = Entry("checkpoints")
    """Folder of training checkpoints."""
    callbacks = Entry("callbacks")
    """Folder of those that Lightning's `ModelCheckpoint`s of a recipe or model write."""
    history = Entry("history")
    """Folder of what training told while it went on; see `headrace.steps.history`."""
    probe = Entry("probe.json")
    """Of a probe: what it has found."""
    report = Entry("report")
    """Folder of the evaluation report."""
    enough = Entry("enough")
    """Its presence tells an evaluation that watches another run that no more checkpoints come."""
    tensorboard = Entry("loggers")
    """Folder for loggers."""
    source = Entry("recipe.source.json")
    """Of a suite: the recipe before interpolation, of which trials' recipes are made."""
    trials = Entry("trials")
    """Of a suite: folder of its trials, by number."""
    journal = Entry("trials.jsonl")
    """Of a suite: what happened to its trials, append-only, by its one step driver."""
    journal_owner = Entry(".trials.owner")
    """Of a suite: who writes the journal, the key of its step."""
    controls = Entry("controls.jsonl")
    """Of a suite: what is asked of it while it runs, append-only, by the control side."""
    summary = Entry("suite.json")
    """Of a suite: counts, the best trial, those that run; replaced every second."""

    def trial(self, number: int) -> TrialFolder:
        """Folder of a trial of a suite, by its number from 1."""
        return TrialFolder(self.trials / f"{number:06d}")

    @property
    def run_id(self) -> str:
        """Identity of the run."""
        return self.path.name


class TrialFolder(RunFolder):
    """One trial of a suite: a run's folder, with its own recipe and checkpoints."""

    def attempt(self, number: int) -> StepFolder:
        """Folder of an attempt at it, by its number from 1."""
        return StepFolder(self.path / "attempts" / f"{number:03d}")


class SiteFolder(Folder):
    """The shared folder of a site, seen by the control side and all nodes."""

    def run(self, run_id: str) -> RunFolder:
        """Folder of a run."""
        return RunFolder(self.path / "runs" / run_id)

    def lease(self, lease_id: str) -> LeaseFolder:
        """Folder of a lease."""
        return LeaseFolder(self.path / "leases" / lease_id)

    leases = Entry("leases")
    """Folder of all leases."""
    datasets = Entry("datasets")
    """Folder of packed datasets."""
