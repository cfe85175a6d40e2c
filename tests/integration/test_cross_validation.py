"""Cross-validation as its user runs it: one run a fold, judged on what it was not trained on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from headrace.shards.dataset import ShardedDataset
from support.bad_input import Place
from support.images import write_class_folders

pytestmark = pytest.mark.slow

FOLDS, FOLD_SAMPLES = 3, 40


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A home with recipe `folded`: 120 pictures of ten classes in three folds, no other split."""
    place = Place(tmp_path / "home")
    place.home.mkdir()
    place.write_site()
    classes = tuple("abcdefghij")
    source = write_class_folders(place.home / "raw", classes=classes, per_class=12)
    place.write_recipe(
        "folded",
        dataset={
            "name": "folded",
            "source": str(source),
            "splits": {"train": 1.0},
            "folds": FOLDS,
        },
        code=[],
        pack={"shard_samples": 15},
        model={"_target_": "headrace.examples.digits_model.DigitsClassifier"},
        data={
            "global_batch_size": 8,
            "fold": 0,
            "transforms": [{"_target_": "headrace.data.transforms.ScaleToUnit"}],
        },
        evaluate={"split": "val"},
    )
    return place


def test_a_run_is_judged_on_its_fold_alone(place: Place) -> None:
    """Another fold is another run on the same packed dataset."""
    assert place.headrace("run", "folded", "--pack-only").returncode == 0
    done = place.headrace("run", "folded", "data.fold=2")
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = place.newest()[0].outputs
    assert outputs["pack"]["reused"]
    assert outputs["train"]["steps"] == (FOLDS - 1) * FOLD_SAMPLES // 8
    assert "val/accuracy" in outputs["train"]["metrics"]
    held_out = ShardedDataset(Path(outputs["pack"]["dataset"]), "val", fold=2)
    expected = held_out.gather("sample_id", np.arange(len(held_out)))
    found = parquet.read_table(outputs["evaluate"]["predictions"])["sample_id"].to_numpy()
    np.testing.assert_array_equal(found, np.sort(expected))
    assert outputs["evaluate"]["num_samples"] == FOLD_SAMPLES
    report = Path(outputs["evaluate"]["report"]).read_text().replace("&#39;", "'")
    assert f"{FOLD_SAMPLES} samples of fold 2 of split 'train'" in report
    for title in ("Loss", "Accuracy", "Learning rate", "Throughput"):
        assert f'alt="{title}"' in report
    assert "headrace run folded --site laptop data.fold=2" in report
    assert re.search(r">data.fold</td><td[^>]*>0</td><td[^>]*>2</td>", report)
