"""The data module: augmentation by position, validation, folds, state."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headrace.data.loaders import DataSettings
from headrace.data.module import HeadraceDataModule
from headrace.data.transforms import AddNoise, Normalize
from headrace.errors import ManifestError
from headrace.files.manifest_file import write_manifest
from headrace.recipe.recipe import DataSpec
from support.shards import write_dataset
from support.training import write_blobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("module") / "dataset"
    write_blobs(folder, train_samples=24, val_samples=5)
    return folder


def make_module(folder: Path, *, training: bool = True, rank: int = 0) -> HeadraceDataModule:
    module = HeadraceDataModule(
        DataSettings(
            folder=folder,
            spec=DataSpec(global_batch_size=8),
            seed=3,
            rank=rank,
            world_size=2,
            transforms=(Normalize(1, 2, field="array"),),
            augment=(AddNoise(0.5, field="array"),),
        )
    )
    module.trainer = SimpleNamespace(training=training)
    return module


def augmented(module: HeadraceDataModule) -> list[torch.Tensor]:
    return [module.on_after_batch_transfer(batch, 0)["array"] for batch in module.train_loader]


def test_augmentation_depends_on_the_place_only(folder):
    """Whatever else draws random numbers, and after a resume."""
    first = augmented(make_module(folder))
    torch.rand(100)
    module = make_module(folder)
    module.load_state_dict(
        {"position": {"epoch": 0, "global_index": 8}, "order": "24 samples shuffled by seed 3"}
    )
    second = augmented(module)
    assert len(second) == 2
    assert all(torch.equal(a, b) for a, b in zip(first[1:], second, strict=True))
    module.train_loader.set_epoch(1)
    assert not torch.equal(augmented(module)[0], first[0])


def test_ranks_draw_other_numbers(folder):
    noise = []
    for rank in range(2):
        batch = next(iter(make_module(folder, rank=rank).train_loader))
        module = make_module(folder, rank=rank)
        noise.append(augmented(module)[0] - (batch["array"] - 1) / 2)
    assert not torch.allclose(noise[0], noise[1])


def test_validation_is_transformed_but_not_augmented(folder):
    module = make_module(folder, training=False)
    batches = list(module.val_dataloader())
    assert sum(len(batch["sample_id"]) for batch in batches) == 2
    for batch in batches:
        after = module.on_after_batch_transfer(batch, 0)
        assert torch.allclose(after["array"], (batch["array"] - 1) / 2)
    assert module.has_validation


def test_a_dataset_without_validation(tmp_path):
    write_blobs(tmp_path / "d", train_samples=24, val_samples=0)
    module = make_module(tmp_path / "d")
    assert not module.has_validation
    assert module.val_dataloader() == []


def test_the_position_is_in_the_checkpoint(folder):
    module = make_module(folder)
    next(iter(module.train_loader))
    assert module.state_dict() == {
        "position": {"epoch": 0, "global_index": 8},
        "order": "24 samples shuffled by seed 3",
        "decoder": "the CPU",
    }


@pytest.fixture
def folds(tmp_path: Path) -> Path:
    """Thirty samples_of in three folds of ten."""
    values = np.arange(30, dtype=np.float32)[:, None]
    fields = {"array": values, "label": np.arange(30) % 2}
    manifest = write_dataset(tmp_path / "a", fields, splits={"train": 30}, shard_samples=10)
    shards = tuple(
        shard.model_copy(update={"fold": number}) for number, shard in enumerate(manifest.shards)
    )
    folds = {"train": (10, 10, 10)}
    write_manifest(tmp_path / "a", manifest.model_copy(update={"shards": shards, "folds": folds}))
    return tmp_path / "a"


def folded(folds: Path, fold: int | None) -> HeadraceDataModule:
    spec = DataSpec(global_batch_size=5, fold=fold, drop_last=False, prefetch=0)
    return HeadraceDataModule(DataSettings(folder=folds, spec=spec, seed=1))


def samples_of(loader: object) -> set[int]:
    return {int(value) for batch in loader for value in batch["array"].ravel()}  # type: ignore[attr-defined]


def test_each_fold_is_validation_once(folds: Path) -> None:
    validated: list[set[int]] = []
    for fold in range(3):
        data = folded(folds, fold)
        assert data.has_validation
        validated.append(samples_of(data.val_dataloader()))
        assert samples_of(data.train_dataloader()) == set(range(30)) - validated[-1]
    assert validated == [set(range(10)), set(range(10, 20)), set(range(20, 30))]


def test_without_a_fold_all_are_trained_on(folds: Path) -> None:
    data = folded(folds, None)
    assert not data.has_validation
    assert samples_of(data.train_dataloader()) == set(range(30))


def test_a_fold_that_is_not_there(folds: Path) -> None:
    with pytest.raises(ManifestError, match="has 3 folds, no fold 3"):
        folded(folds, 3)
