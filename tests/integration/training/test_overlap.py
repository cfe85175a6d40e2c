"""Training that starts when the first shards are in gives what one after staging gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.data.order import needed_first
from headrace.files.manifest_file import read_manifest
from headrace.objects.store import LocalStore
from headrace.staging.staged import ensure_staged
from headrace.steps.context import StepContext
from support.shards import write_dataset
from support.training import blob_step, train_here

pytestmark = pytest.mark.slow

NUM_SHARDS = 10


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("blobs") / "dataset"
    generator = np.random.default_rng(3)
    label = generator.integers(0, 3, 88)
    array = generator.normal(size=(88, 8)) + 2 * np.eye(3, 8)[label]
    fields = {"array": array.astype(np.float32), "label": label}
    write_dataset(folder, fields, splits={"train": 80, "val": 8}, shard_samples=8)
    return folder


def start(folder: Path, **model: Any) -> StepContext:
    return blob_step(folder, model, stage={"overlap": True}, data={"prefetch": 2})


def notes(folder: Path) -> list[dict[str, Any]]:
    """What rank 0 has trained so far, batch after batch."""
    file = folder / "notes" / "rank-0.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def trained(folder: Path) -> list[tuple[int, list[int]]]:
    """Samples of each step of rank 0, the last time that it was trained."""
    return sorted({note["step"]: note["samples"] for note in notes(folder)}.items())


def staged_shards(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "tier" / "datasets").glob("*/shards/*.h5"))


@pytest.fixture(scope="module")
def waited_for(dataset, tmp_path_factory) -> tuple[dict[str, Any], list[tuple[int, list[int]]]]:
    """Outputs and samples when all was staged before the ranks started."""
    folder = tmp_path_factory.mktemp("whole")
    context = start(folder)
    ensure_staged(dataset, context.site.tiers)
    outputs = train_here(context, dataset)
    assert "streamed" not in outputs
    return outputs, trained(folder)


def test_training_starts_before_all_is_staged_and_its_order_is_the_same(
    dataset, tmp_path, waited_for, monkeypatch, no_leftover_processes
):
    """Ranks bring all shards but those of the first window, which they wait for; then one dies.

    Pains 30: nothing of it is seen in the weights.
    """
    before_ranks, download = [], LocalStore.download

    def counted(self, path, target, tick=None):  # in this process; ranks are forked from another
        before_ranks.append(path)
        return download(self, path, target, tick)

    monkeypatch.setattr(LocalStore, "download", counted)
    context = start(tmp_path, dies=[[0, 4]])
    outputs = train_here(context, dataset)
    assert set(before_ranks) == needed_first(context.recipe, read_manifest(dataset))
    assert len(before_ranks) == 4
    assert len(staged_shards(tmp_path)) == NUM_SHARDS + 1
    expected, samples = waited_for
    assert trained(tmp_path) == samples
    assert outputs["weights_xxh3"] == expected["weights_xxh3"]
    assert outputs["restarts"] >= 1
