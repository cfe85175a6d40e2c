"""The data module: augmentation by position, validation that may be missing, state."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headrace.data.loaders import DataSettings
from headrace.data.module import HeadraceDataModule
from headrace.data.transforms import AddNoise, Normalize
from headrace.recipe.recipe import DataSpec
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
    }
