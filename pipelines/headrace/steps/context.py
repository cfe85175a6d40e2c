"""Context of a step function: its spec, recipe and site, and its reports of progress.

Also the damaged shards that a run leaves out: found before its first use of the dataset, once for
all ranks, and stored in the run's folder, so that staging, each launch and resume omit the same.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from headrace.clusters.lease_records import HostRecord
from headrace.clusters.lifetime import TELLING_S
from headrace.errors import (
    LeaseEndsError,
    LeaseTakenError,
    StepCancelledError,
    StepError,
    StepTimedOutError,
    StorageError,
)
from headrace.files.atomic import is_there, read_record, read_text, write_record
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder
from headrace.files.lines import append_line
from headrace.files.manifest import Manifest
from headrace.informing import inform
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.recipe.dataset import TRAIN, VALIDATION
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.record import Record
from headrace.steps.mailbox import Progress, StepSpec


def resolved(run: RunFolder) -> tuple[Recipe, Site]:
    """Return the recipe and site of a run, as it began; raise StorageError if one is missing."""
    recipe, site = read_record(run.recipe, Recipe), read_record(run.site, Site)
    if recipe is None or site is None:
        hint = "It was removed, or its file system is not mounted: bring it back."
        raise StorageError(f"{run.path} holds no recipe.json or site.json", hint)
    return recipe, site


@dataclass
class StepContext:
    """Context of a running step, made by `headrace.steps.run`, with its run's recipe and site."""

    folder: StepFolder
    spec: StepSpec
    recipe: Recipe
    site: Site
    started_at: float = field(default_factory=time.time)
    started_s: float = field(default_factory=time.monotonic)
    current: Progress = field(default_factory=Progress)
    metrics: dict[str, float] = field(default_factory=dict)
    restarts: list[str] = field(default_factory=list)
    usage: AttemptUsage | None = None

    @property
    def run_folder(self) -> RunFolder:
        """Folder of the run."""
        return RunFolder(Path(self.spec.run_folder))

    @property
    def lease_folder(self) -> LeaseFolder:
        """Folder of the lease the step runs in."""
        path = self.spec.lease_folder
        return LeaseFolder(Path(path) if path else self.folder.path.parent.parent)

    @cached_property
    def ends_at(self) -> float | None:
        """Latest end of the lease, seconds since the epoch; None if unknown."""
        host = read_record(self.lease_folder.host, HostRecord)
        return None if host is None else host.ends_at

    @cached_property
    def _stop_s(self) -> float:
        """When the step stops before its lease's end, on the clock of `started_s`."""
        if self.ends_at is None:
            return math.inf
        return self.started_s + self.ends_at - TELLING_S - self.started_at

    def left_s(self) -> float:
        """Return the seconds until the step stops for its lease's end; infinite if unknown."""
        return self._stop_s - time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the driver started, unaffected by changes of the clock."""
        return time.monotonic() - self.started_s

    def given(self, name: str, maker: str) -> str:
        """Return an input text of the step of kind `maker`; raise StepError if it is missing."""
        value = self.spec.inputs.get(name)
        if not isinstance(value, str):
            what = f"The {self.spec.kind} step was given no {name}"
            raise StepError(what, f"Run the {maker} step before it.")
        return value

    @property
    def dataset(self) -> str:
        """The input `dataset`: location of the packed one; empty if the recipe has none."""
        return "" if self.recipe.dataset is None else self.given("dataset", "pack")

    def progress(self, done: float, total: float | None, unit: str, phase: str = "") -> None:
        """Set the progress, as in `Progress`; cheap; raises what `check` raises."""
        self.current = Progress(done=done, total=total, unit=unit, phase=phase)
        self.check()

    def report(self, **metrics: float) -> None:
        """Add metrics to the status."""
        self.metrics.update(metrics)

    def restarted(self, why: str) -> None:
        """Record, in status and events, a restart of the step's processes, and its reason."""
        self.restarts.append(why)
        self.event("restart", number=len(self.restarts), why=why)

    def event(self, name: str, **fields: object) -> None:
        """Append a structured event to `events.jsonl`."""
        append_event(self.folder.events, name, **fields)

    def check(self) -> None:
        """Raise if the step was cancelled, or its or its lease's time is over.

        Raises:
            StepCancelledError: A user or the control side cancelled the step.
            LeaseEndsError: The lease is about to end.
            StepTimedOutError: The step ran past its time limit.
        """
        if is_there(self.folder.cancel):
            why = self.folder.cancel.read_text().removeprefix("Cancelled: ")  # a suite's own
            raise StepCancelledError(f"Cancelled: {why}")
        if time.monotonic() > self._stop_s:
            raise LeaseEndsError(
                f"Step {self.spec.name} was not done when the time of lease "
                f"{self.lease_folder.lease_id} was over"
            )
        limit = self.spec.timeout_s
        if limit is not None and self.elapsed_s > limit:
            raise StepTimedOutError(f"Step {self.spec.name} ran past its limit of {limit:g} s")

    def lease_over(self, done: str) -> LeaseEndsError:
        """Return the error that ends the work here, to be continued in another lease.

        `done` is the progress, as `Training stopped after step 7`. The reason is the end of the
        lease, or that its machines are taken away.
        """
        hint = "It continues from there in another lease."
        notice = read_text(self.lease_folder.notice)
        if notice is not None:
            why = f"since its machines are taken away: {notice.strip()}"
            return LeaseTakenError(f"{done}, {why}", hint)
        lease_id = self.lease_folder.lease_id
        return LeaseEndsError(f"{done}, just before the time of lease {lease_id} was over", hint)


def append_event(path: Path, name: str, **fields: object) -> None:
    """Append an event with its time in one write; a failure does not affect the step."""

    def append() -> None:
        line = json.dumps({"at": time.time(), "event": name, **fields}, default=str)
        append_line(path, line)

    inform(None, f"event {name}", append, within_s=None)


class SkippedShard(Record):
    """A damaged shard that training leaves out."""

    file: str
    split: str
    num_samples: int
    problem: str


class Skipped(Record):
    """`skipped.json` of a run."""

    fingerprint: str
    """Fingerprint of the checked dataset."""
    shards: tuple[SkippedShard, ...]
    """Damaged shards of the splits that training reads."""

    @property
    def files(self) -> frozenset[str]:
        """Paths relative to the dataset's folder."""
        return frozenset(shard.file for shard in self.shards)

    @property
    def num_samples(self) -> int:
        """Samples that are left out."""
        return sum(shard.num_samples for shard in self.shards)


def skipped_shards(context: StepContext, dataset: str, manifest: Manifest) -> Skipped:
    """Return the shards that a run leaves out; none unless `data.on_bad_shard` is `skip`.

    The first call of a run reads and checks the whole dataset at its location. Every call records
    them as an event, and in the status if there are any.

    Raises:
        StepCancelledError: The step was cancelled.
        StoreError: The dataset cannot be read.
    """
    if context.recipe.data.on_bad_shard != "skip":
        return Skipped(fingerprint=manifest.fingerprint, shards=())
    file = context.run_folder.skipped
    found = read_record(file, Skipped)
    if found is None or found.fingerprint != manifest.fingerprint:
        found = _check(context, dataset, manifest)
        write_record(file, found)
    shards = [shard.model_dump() for shard in found.shards]
    context.event("shards_skipped", num_samples=found.num_samples, shards=shards)
    if found.shards:
        context.report(skipped_shards=len(found.shards), skipped_samples=found.num_samples)
    return found


def _check(context: StepContext, dataset: str, manifest: Manifest) -> Skipped:
    from headrace.shards.inspection import verify_dataset

    done_bytes = 0

    def tick(num_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += num_bytes
        context.progress(done_bytes, manifest.num_bytes, "bytes", "checking shards")

    findings = verify_dataset(dataset, tick, context.site.s3)
    problems = {found.file: found.problem for found in reversed(findings)}
    shards = tuple(
        SkippedShard(
            file=shard.file,
            split=shard.split,
            num_samples=shard.num_samples,
            problem=problems[shard.file],
        )
        for shard in manifest.shards
        if shard.file in problems and shard.split in (TRAIN, VALIDATION)
    )
    return Skipped(fingerprint=manifest.fingerprint, shards=shards)
