"""Layout of the folders of a site, a run, a lease and a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Folder:
    """A folder whose files have fixed names."""

    path: Path


class Entry:
    """A file in the folder, as an attribute that holds its `Path`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Folder, kind: type) -> Path:
        return folder.path / self._name


class NumberedEntry:
    """A file in the folder for each number, as a function that returns its `Path`."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def __get__(self, folder: Folder, kind: type) -> Callable[[int], Path]:
        return lambda number: folder.path / self._pattern.format(number)


class StepFolder(Folder):
    """One attempt at a step: `leases/<lease_id>/steps/<number>/`."""

    spec = Entry("spec.json")
    """Input, immutable."""
    status = Entry("status.json")
    """Replaced every second by the step driver."""
    events = Entry("events.jsonl")
    """Structured events, append-only JSON lines."""
    result = Entry("result.json")
    """Written once, atomically, as the last file."""
    exit = Entry("exit.json")
    """Exit code of the driver, written by the host after the driver's end."""
    cancel = Entry("cancel")
    """If present, the step is asked to stop; holds the requester and the reason."""
    reading = Entry("reading")
    """The file of samples that the driver reads; absent if it reads none."""
    waits = Entry("waits")
    """What an attempt that is about to begin waits for; absent if it waits for nothing."""
    logs = Entry("logs")
    """Folder of `driver.log`, `rank-<r>.log`, `predictor-<worker>.log`, …."""
    parts = Entry("parts")
    """Folder of intermediate files that the step's workers share."""

    @property
    def number(self) -> int:
        """Number of the step in its lease, from 1."""
        return int(self.path.name)


class LeaseFolder(Folder):
    """`leases/<lease_id>/`."""

    spec = Entry("spec.json")
    """The request; written by the control side before the host starts."""
    info = Entry("lease.json")
    """The lease as it is: addresses, job ids; published by the host when the lease is ready."""
    host = Entry("host.json")
    """Identity of the host process; written by the host, after its first heartbeat."""
    job = Entry("job.json")
    """The job that gives the machines; absent without a queue."""
    preflight = Entry("preflight")
    """Folder of the preflight results of a gang's nodes, by index."""
    cause = Entry("cause.json")
    """How the job of a lost lease ended, as the batch system reported it."""
    bad_nodes = Entry("bad-nodes.json")
    """Nodes on which the lease failed; absent if no node is to blame."""
    waiting = Entry("waiting.json")
    """Why no job is submitted yet; absent if one is, or the lease has not been started."""
    jobs = Entry("jobs")
    """Records and logs of the jobs that are a pool's nodes, by number."""
    nodes = Entry("nodes.jsonl")
    """When its nodes were available, joined and left, append-only; written by the host."""
    pool = Entry("pool.json")
    """State of those jobs, and why no more are possible; written by the host."""
    tls = Entry("tls")
    """Folder of the key and certificate of the Dask cluster."""
    key = Entry("tls/key.pem")
    """The key itself: all who can read it may use the lease."""
    certificate = Entry("tls/certificate.pem")
    """Certificate of that key, the only one that the lease's processes trust."""
    secrets = Entry("tls/secrets.json")
    """Environment variables of the site's `secrets`; exists as long as the lease, like its key."""
    start_lock = Entry(".start.lock")
    """Locked by the process that starts the host, or submits its job."""
    lock = Entry(".host.lock")
    """Locked by the host as long as it lives, so that there is only one."""
    heartbeat = Entry("heartbeat")
    """Rewritten by the host every few seconds."""
    notice = Entry("notice")
    """Written on a gang's node if its machines are about to be taken away; holds the reason."""
    services = Entry("services.json")
    """Addresses of its services, written by the host; absent without any."""
    at_risk = Entry("at-risk")
    """Written on a gang's node if its machines may be taken away soon; holds the reason."""
    steps = Entry("steps")
    """The mailbox: numbered step folders."""
    close = Entry("close")
    """If present, the host is asked to end; holds the reason."""
    closed = Entry("closed")
    """Written by the host as its last act; holds the reason for its end."""
    log = Entry("host.log")
    """Log of the host."""
    scheduler_file = Entry("scheduler.json")
    """Dask's scheduler file."""

    @property
    def lease_id(self) -> str:
        """Identity of the lease."""
        return self.path.name

    def step(self, number: int) -> StepFolder:
        """Return the folder of the step with this number (from 1)."""
        return StepFolder(self.steps / f"{number:06d}")


def checkpoint_name(step: int) -> str:
    """Return the file name of the checkpoint after `step` optimizer steps."""
    return f"step-{step:09d}.ckpt"


def kept_name(step: int) -> str:
    """Return the file name of the weights kept for evaluation after `step` optimizer steps."""
    return f"kept-{step:09d}.ckpt"


class RunFolder(Folder):
    """`runs/<run_id>/`."""

    recipe = Entry("recipe.json")
    """The resolved recipe."""
    site = Entry("site.json")
    """The resolved site."""
    request = Entry("request.json")
    """Request: its user and its content."""
    prediction = Entry("prediction.json")
    """Forecast of the run at its begin."""
    frontier = Entry("frontier.json")
    """Forecasts of a suite over several sites at its begin: ends and costs by policy, deadline."""
    eta = Entry("eta.json")
    """End that was announced last; absent until it has moved far from the forecast."""
    log = Entry("run.log")
    """Output of its detached process; absent if none was detached."""
    informing = Entry("informing.jsonl")
    """Failures of parts that only inform, append-only; absent if there are none."""
    provenance = Entry("provenance.json")
    """Git commit, versions, command, host."""
    lock = Entry("requirements.txt")
    """Its packages, for `rerun --frozen`."""
    diff = Entry("working-tree.diff")
    """Uncommitted changes; absent if there are none."""
    code = Entry("code")
    """Copies of the folders of its code; absent if the recipe names none."""
    code_record = Entry("code.json")
    """Where the copies come from, and what is not copied."""
    rehearsed = Entry("rehearsed")
    """Of a rehearsal: folder of its dataset, until it has succeeded."""
    skipped = Entry("skipped.json")
    """Damaged shards that the run leaves out."""
    checkpoints = Entry("checkpoints")
    """Folder of training checkpoints."""
    callbacks = Entry("callbacks")
    """Folder of checkpoints of Lightning's `ModelCheckpoint`s in a recipe or model."""
    work = Entry("work")
    """Working folder of a script."""
    history = Entry("history")
    """Folder of training's measurements over time; see `headrace.steps.history`."""
    probe = Entry("probe.json")
    """Of a probe: its results."""
    report = Entry("report")
    """Folder of the evaluation report."""
    report_file = Entry("report/report.html")
    """The report of a suite or of a run's evaluation, one HTML file."""
    predicted = Entry("predicted")
    """Folder of the predictions of an evaluation whose lease ended, for the next one."""
    enough = Entry("enough")
    """If present, an evaluation that watches another run expects no more checkpoints."""
    tensorboard = Entry("loggers")
    """Folder for loggers."""
    source = Entry("recipe.source.json")
    """Of a suite: the recipe before interpolation, the base of its trials' recipes."""
    trials = Entry("trials")
    """Of a suite: folder of its trials, by number."""
    journal = Entry("trials.jsonl")
    """Of a suite: events of its trials, append-only, written by its only step driver."""
    journal_owner = Entry(".trials.owner")
    """Of a suite: the key of the step that may write the events."""
    controls = Entry("controls.jsonl")
    """Of a suite: requests to it while it runs, append-only, written by the control side."""
    sites = Entry("sites")
    """Of a suite over several sites: folder of these sites, `<name>.json`, as when it began."""
    part = Entry("part.json")
    """Of a part of a suite: what its process does; replaced by it."""
    summary = Entry("suite.json")
    """Of a suite: counts, the best trial, the running ones; replaced every second."""

    def trial(self, number: int) -> TrialFolder:
        """Return the folder of a suite's trial, by its number from 1."""
        return TrialFolder(self.trials / f"{number:06d}")

    @property
    def is_trial(self) -> bool:
        """Whether this is a trial's folder."""
        return self.path.parent.name == "trials" and self.path.name.isdecimal()

    @property
    def whole(self) -> RunFolder:
        """The folder of the run, of a trial that of its suite."""
        return RunFolder(self.path.parents[1]) if self.is_trial else self

    @property
    def run_id(self) -> str:
        """Identity of the run; of a trial `SUITE:NUMBER`."""
        name = self.path.name
        return f"{self.whole.run_id}:{int(name)}" if self.is_trial else name


def run_of(checkpoint: Path) -> RunFolder | None:
    """Return the run in whose folder of checkpoints a file lies; None if there is none."""
    run = RunFolder(checkpoint.parent.parent)
    return run if checkpoint.parent == run.checkpoints and run.recipe.exists() else None


class TrialFolder(RunFolder):
    """One trial of a suite: a run's folder, with its own recipe and checkpoints."""

    def step(self, number: int) -> StepFolder:
        """Return the folder of an attempt at the trial, by its number from 1."""
        return StepFolder(self.path / "attempts" / f"{number:03d}")


class SiteFolder(Folder):
    """The shared folder of a site, accessible to the control side and all nodes."""

    def run(self, run_id: str) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self.path / "runs" / run_id)

    def lease(self, lease_id: str) -> LeaseFolder:
        """Return the folder of a lease."""
        return LeaseFolder(self.path / "leases" / lease_id)

    leases = Entry("leases")
    """Folder of all leases."""
    datasets = Entry("datasets")
    """Folder of packed datasets."""
