"""Cross-validation: each fold is validated on once, and never trained on then."""

from pathlib import Path

import numpy as np
import pytest

from headrace.data.loaders import DataSettings
from headrace.data.module import HeadraceDataModule
from headrace.errors import ManifestError
from headrace.files.manifest_file import write_manifest
from headrace.recipe.recipe import DataSpec
from support.shards import write_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty samples in three folds of ten."""
    values = np.arange(30, dtype=np.float32)[:, None]
    fields = {"array": values, "label": np.arange(30) % 2}
    manifest = write_dataset(tmp_path / "a", fields, splits={"train": 30}, shard_samples=10)
    shards = tuple(
        shard.model_copy(update={"fold": number}) for number, shard in enumerate(manifest.shards)
    )
    folds = {"train": (10, 10, 10)}
    write_manifest(tmp_path / "a", manifest.model_copy(update={"shards": shards, "folds": folds}))
    return tmp_path / "a"


def module(folder: Path, fold: int | None) -> HeadraceDataModule:
    spec = DataSpec(global_batch_size=5, fold=fold, drop_last=False, prefetch=0)
    return HeadraceDataModule(DataSettings(folder=folder, spec=spec, seed=1))


def samples(loader: object) -> set[int]:
    return {int(value) for batch in loader for value in batch["array"].ravel()}  # type: ignore[attr-defined]


def test_each_fold_is_validation_once(folder: Path) -> None:
    validated: list[set[int]] = []
    for fold in range(3):
        data = module(folder, fold)
        assert data.has_validation
        validated.append(samples(data.val_dataloader()))
        assert samples(data.train_dataloader()) == set(range(30)) - validated[-1]
    assert validated == [set(range(10)), set(range(10, 20)), set(range(20, 30))]


def test_without_a_fold_all_are_trained_on(folder: Path) -> None:
    data = module(folder, None)
    assert not data.has_validation
    assert samples(data.train_dataloader()) == set(range(30))


def test_a_fold_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ManifestError, match="has 3 folds, no fold 3"):
        module(folder, 3)
