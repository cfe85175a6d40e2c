"""Damaged shards that a run leaves out, found once a dataset; events that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.files.manifest import Manifest
from headrace.steps.context import StepContext, append_event, skipped_shards
from support.shards import write_dataset
from support.training import make_context, make_recipe, make_site


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Five shards; the second of training and that of the test are damaged."""
    fields = {"x": np.arange(40), "label": np.zeros(40, dtype=np.int64)}
    splits = {"train": 24, "val": 8, "test": 8}
    written = write_dataset(tmp_path / "data", fields, splits=splits, shard_samples=8)
    for name in ("train-00001", "test-00000"):
        (tmp_path / "data/shards" / f"{name}.h5").unlink()
    return written


def context(folder: Path, on_bad_shard: str) -> StepContext:
    """Another call is another attempt of the same run."""
    recipe = {
        "model": {"_target_": "torch.nn.Identity"},
        "data": {"global_batch_size": 8, "on_bad_shard": on_bad_shard},
    }
    return make_context(folder, make_recipe(recipe), make_site(folder))


def test_without_the_policy_nothing_is_looked_at(tmp_path: Path, manifest: Manifest):
    given = context(tmp_path, "stop")
    assert skipped_shards(given, str(tmp_path / "data"), manifest).shards == ()
    assert not given.run_folder.skipped.exists()


def test_what_a_run_left_out_it_leaves_out_to_its_end(tmp_path: Path, manifest: Manifest):
    """Pains 30: a resumed attempt trains on the samples of the first one."""
    data = str(tmp_path / "data")
    first = context(tmp_path, "skip")
    found = skipped_shards(first, data, manifest)
    assert (found.files, found.num_samples) == ({"shards/train-00001.h5"}, 8)
    there = [each.num_bytes for each in manifest.shards if (tmp_path / "data" / each.file).exists()]
    assert (first.current.done, first.current.total) == (sum(there), manifest.num_bytes)
    assert first.metrics["skipped_samples"] == 8
    (tmp_path / "data/shards/train-00000.h5").unlink()
    second = context(tmp_path, "skip")
    assert skipped_shards(second, data, manifest) == found
    (event,) = map(json.loads, second.folder.events.read_text().splitlines())
    assert (event["event"], event["num_samples"]) == ("shards_skipped", 8)


@pytest.mark.parametrize("another", ["0", "another"])
def test_another_dataset_is_looked_at_anew(tmp_path: Path, manifest: Manifest, another: str):
    data = str(tmp_path / "data")
    skipped_shards(context(tmp_path, "skip"), data, manifest)
    (tmp_path / "data/shards/train-00000.h5").unlink()
    other = manifest.model_copy(update={"fingerprint": another})
    found = skipped_shards(context(tmp_path, "skip"), data, other)
    assert found.files == {"shards/train-00000.h5", "shards/train-00001.h5"}
    assert found.fingerprint == another


@pytest.mark.parametrize(
    ("path", "why"),
    [("/dev/full", "[Errno 28]"), ("/proc/self/oom_score_adj", "Invalid argument")],
)
def test_a_failure_costs_the_event_and_not_the_step(
    path: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    append_event(Path(path), f"started at {path}")
    assert f"event started at {path}: " in caplog.text
    assert why in caplog.text
