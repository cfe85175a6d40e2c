"""Training on shards that are damaged, staged meanwhile, or never staged whole."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.data.order import needed_first
from headrace.errors import DataError
from headrace.files.atomic import read_record
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import FILE_NAME, read_manifest
from headrace.objects.store import LocalStore, open_store
from headrace.staging.staged import ensure_staged
from headrace.steps.context import Skipped, StepContext
from headrace.training.train_step import train
from support.s3_servers import S3Server
from support.shards import write_dataset
from support.training import (
    CODE,
    ThisProcessFleet,
    blob_step,
    events_of,
    make_context,
    make_recipe,
    make_site,
    streamed_recipe,
    train_here,
    trained,
)

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


NUM_SHARDS = 10


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("blobs") / "many_shards"
    generator = np.random.default_rng(3)
    label = generator.integers(0, 3, 88)
    array = generator.normal(size=(88, 8)) + 2 * np.eye(3, 8)[label]
    fields = {"array": array.astype(np.float32), "label": label}
    write_dataset(folder, fields, splits={"train": 80, "val": 8}, shard_samples=8)
    return folder


def start_early(folder: Path, **model: Any) -> StepContext:
    return blob_step(folder, model, stage={"overlap": True}, data={"prefetch": 2})


def notes(folder: Path) -> list[dict[str, Any]]:
    """What rank 0 has trained_by_one so far, batch after batch."""
    file = folder / "notes" / "rank-0.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def trained_by_one(folder: Path) -> list[tuple[int, list[int]]]:
    """Samples of each step of rank 0, the last time that it was trained_by_one."""
    return sorted({note["step"]: note["samples"] for note in notes(folder)}.items())


def staged_shards(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "tier" / "datasets").glob("*/shards/*.h5"))


@pytest.fixture(scope="module")
def waited_for(many_shards, tmp_path_factory) -> tuple[dict[str, Any], list[tuple[int, list[int]]]]:
    """Outputs and samples when all was staged before the ranks started."""
    folder = tmp_path_factory.mktemp("whole")
    context = start_early(folder)
    ensure_staged(many_shards, context.site.tiers)
    outputs = train_here(context, many_shards)
    assert "streamed" not in outputs
    return outputs, trained_by_one(folder)


def test_training_starts_before_all_is_staged_and_its_order_is_the_same(
    many_shards, tmp_path, waited_for, monkeypatch, no_leftover_processes
):
    """Ranks bring all shards but those of the first window, which they wait for; then one dies.

    Pains 30: nothing of it is seen in the weights.
    """
    before_ranks, download = [], LocalStore.download

    def counted(self, path, target, tick=None):  # in this process; ranks are forked from another
        before_ranks.append(path)
        return download(self, path, target, tick)

    monkeypatch.setattr(LocalStore, "download", counted)
    context = start_early(tmp_path, dies=[[0, 4]])
    outputs = train_here(context, many_shards)
    assert set(before_ranks) == needed_first(context.recipe, read_manifest(many_shards))
    assert len(before_ranks) == 4
    assert len(staged_shards(tmp_path)) == NUM_SHARDS + 1
    expected, samples = waited_for
    assert trained_by_one(tmp_path) == samples
    assert outputs["weights_xxh3"] == expected["weights_xxh3"]
    assert outputs["restarts"] >= 1


BALLAST_BYTES = 64 * 2**10
"""Of each sample, so that few shards fit on the tier."""


@pytest.fixture
def far_dataset(tmp_path) -> Path:
    generator = np.random.default_rng(3)
    label = generator.integers(0, 3, 90)
    array = generator.normal(size=(90, 8)) + 2 * np.eye(3, 8)[label]
    fields = {
        "array": array.astype(np.float32),
        "ballast": np.zeros((90, BALLAST_BYTES), dtype=np.uint8),
        "label": label,
    }
    splits = {"train": 80, "val": 10}
    write_dataset(tmp_path / "far_dataset", fields, splits=splits, shard_samples=5)
    return tmp_path / "far_dataset"


def trained_from(
    folder: Path, far_dataset: str, manifest_of: Path, site: dict[str, Any]
) -> dict[str, Any]:
    recipe = make_recipe(streamed_recipe(folder / "notes"))
    context = make_context(folder, recipe, make_site(folder, allowed_code=[str(CODE)], **site))
    return train(context, ThisProcessFleet(), far_dataset, read_manifest(manifest_of))


def test_what_is_far_and_what_is_near_train_alike(
    far_dataset, tmp_path, moto_server: S3Server, moto_bucket, no_leftover_processes
):
    """Two ranks; five MiB for six, of which some are left for what is fetched from S3."""
    url = f"{moto_bucket}/blobs"
    store = open_store(url, moto_server.options)
    for path in [far_dataset / FILE_NAME, *(far_dataset / "shards").iterdir()]:
        store.upload(path, str(path.relative_to(far_dataset)))
    small = {"name": "disk", "folder": str(tmp_path / "small"), "reserve": 0, "budget": "5MiB"}
    site = {"s3": moto_server.options.model_dump(), "tiers": [small]}
    streamed = trained_from(tmp_path / "streamed", url, far_dataset, site)
    (copy,) = (tmp_path / "small" / "datasets").glob("*/shards")
    assert 0 < len(list(copy.glob("*.h5"))) < 18
    assert not list(copy.parent.glob("stream/*/*.h5"))

    whole = trained_from(tmp_path / "whole", str(far_dataset), far_dataset, {})
    assert streamed["weights_xxh3"] == whole["weights_xxh3"]
    assert streamed["metrics"] == whole["metrics"]
    fetched = streamed["streamed"]["node-0"]
    assert fetched["source_bytes"] > 0
    assert fetched["peer_bytes"] == 0
    assert "streamed" not in whole
