"""Damaged shards end a training, or are left out by all ranks alike, and told."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.files.atomic import read_record
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import read_manifest
from headrace.steps.context import Skipped, StepContext
from support.shards import write_dataset
from support.training import blob_step, events_of, train_here, trained

pytestmark = pytest.mark.slow

BAD = ("shards/train-00001.h5", "shards/train-00003.h5", "shards/val-00000.h5")


@pytest.fixture
def dataset(tmp_path) -> Path:
    """A bit is flipped, a file cut, another gone."""
    folder = tmp_path / "dataset"
    generator = np.random.default_rng(3)
    fields = {
        "array": generator.normal(size=(68, 8)).astype(np.float32),
        "label": generator.integers(0, 3, 68),
    }
    write_dataset(folder, fields, splits={"train": 48, "val": 20}, shard_samples=8)
    flipped, cut, gone = (folder / file for file in BAD)
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-100])
    gone.unlink()
    return folder


def start(folder: Path, policy: str, overlap: bool = False, **model: Any) -> StepContext:
    return blob_step(folder, model, stage={"overlap": overlap}, data={"on_bad_shard": policy})


def trained_of(folder: Path) -> dict[int, list[int]]:
    """Samples of each step over both ranks."""
    steps: defaultdict[int, list[int]] = defaultdict(list)
    for (_, step), samples in trained(folder).items():
        steps[step].extend(samples)
    return steps


@pytest.mark.parametrize("overlap", [False, True], ids=["staged before", "staged meanwhile"])
def test_they_are_left_out_on_all_ranks_and_told(overlap, dataset, tmp_path, no_leftover_processes):
    """Pains 30: a rank dies in epoch 1; what is left out stays the same."""
    context = start(tmp_path / "here", "skip", overlap, dies=[[1, 6]])
    outputs: dict[str, Any] = train_here(context, dataset)
    assert outputs["skipped_shards"] == sorted(BAD)
    assert outputs["skipped_samples"] == 24
    assert outputs["steps"] == 2 * 4
    assert outputs["restarts"] >= 1
    steps = trained_of(tmp_path / "here")
    good = sorted({*range(48)} - {*range(8, 16), *range(24, 32)})
    for epoch in range(2):
        taken = [sample for step in range(4) for sample in steps[epoch * 4 + step + 1]]
        assert sorted(taken) == good
    assert context.metrics["skipped_samples"] == 24
    [told] = events_of(context, "shards_skipped")
    assert [shard["file"] for shard in told["shards"]] == list(BAD)
    problems = " | ".join(shard["problem"] for shard in told["shards"])
    assert "checksum" in problems
    assert "bytes, not" in problems
    assert "missing" in problems
    kept = read_record(context.run_folder.skipped, Skipped)
    assert kept.files == set(BAD)


def test_without_the_policy_they_end_the_step(dataset, tmp_path):
    with pytest.raises(DataError, match=r"(train-0000[13]|val-00000)\.h5"):
        train_here(start(tmp_path / "here", "stop"), dataset)


def test_a_manifest_without_some_shards(dataset):
    manifest: Manifest = read_manifest(dataset)
    assert manifest.without(()) is manifest
    left = manifest.without(BAD)
    assert left.splits == {"train": 32, "val": 12}
    assert not set(BAD) & {shard.file for shard in left.shards}
    folded = manifest.model_copy(
        update={
            "splits": {"train": 48},
            "folds": {"train": (24, 24)},
            "shards": tuple(
                shard.model_copy(update={"fold": number // 3})
                for number, shard in enumerate(manifest.shards_of("train"))
            ),
        }
    )
    parted = folded.without(BAD).with_fold(0)
    assert parted.splits == {"train": 16, "val": 16}
