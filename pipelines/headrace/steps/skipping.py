"""Which shards a run does without: found before its first use of the dataset, once for all ranks.

The finding is kept in the run's folder, so that staging, every launch and every resume of the run
leave out the same shards.
"""

from __future__ import annotations

from headrace.files.atomic import read_record, write_record
from headrace.files.manifest import Manifest
from headrace.recipe.dataset import TRAIN, VALIDATION
from headrace.record import Record
from headrace.steps.context import StepContext


class SkippedShard(Record):
    """A damaged shard that training does without."""

    file: str
    """The shard, relative to the dataset's folder."""
    split: str
    """Its split."""
    num_samples: int
    """Its samples."""
    problem: str
    """What is wrong with it."""


class Skipped(Record):
    """`skipped.json` of a run."""

    fingerprint: str
    """Dataset that was checked."""
    shards: tuple[SkippedShard, ...]
    """Damaged shards of the splits that training reads."""

    @property
    def files(self) -> frozenset[str]:
        """Their files."""
        return frozenset(shard.file for shard in self.shards)

    @property
    def num_samples(self) -> int:
        """Samples that are left out."""
        return sum(shard.num_samples for shard in self.shards)


def skipped_shards(context: StepContext, dataset: str, manifest: Manifest) -> Skipped:
    """The shards that a run leaves out; none unless `data.on_bad_shard` is `skip`.

    The first call of a run reads and checks the whole dataset where it lies. Every call tells
    what is left out as an event, and in the status when it is something.

    Raises:
        StepCancelledError: Somebody asked the step to stop.
        StoreError: The dataset cannot be read.
    """
    nothing = Skipped(fingerprint=manifest.fingerprint, shards=())
    if context.recipe.data.on_bad_shard != "skip":
        return nothing
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
