"""A training whose split lies on the device: the same weights, and what became of the tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.training import blob_step, events_of, train_here, write_blobs


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tier") / "dataset"
    write_blobs(folder)
    return folder


@pytest.fixture(scope="module")
def weights(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of the weights of a training from the host."""
    context = blob_step(tmp_path_factory.mktemp("host"), site={"ranks": 1})
    return str(train_here(context, dataset)["weights_xxh3"])


def roomy_step(folder: Path, **model: Any) -> Any:
    tiers = [
        {"name": "gpu", "reserve": 0},
        {"name": "disk", "folder": str(folder / "tier"), "reserve": 0},
    ]
    model = {"_target_": "roomy_models.RoomyModel", **model}
    return blob_step(folder, model, site={"ranks": 1, "tiers": tiers})


def test_ranks_without_a_gpu_train_from_the_host(
    dataset: Path, weights: str, tmp_path: Path
) -> None:
    context = roomy_step(tmp_path, _target_="blob_models.BlobModel")
    outputs = train_here(context, dataset)
    assert outputs["notes"] == {"gpu_tier": "not used: no GPU is in use"}
    assert outputs["weights_xxh3"] == weights
    state = torch.load(outputs["checkpoint"])["HeadraceDataModule"]  # evaluation reads it
    assert state["decoder"] == "the CPU"
    assert not events_of(context, "restarted")


def test_a_held_split_gives_the_same_weights_also_after_a_kill(
    dataset: Path, weights: str, tmp_path: Path, no_leftover_processes: None
) -> None:
    context = roomy_step(tmp_path, dies=[[0, 7]])
    outputs = train_here(context, dataset)
    assert outputs["notes"]["gpu_tier"] == "holds 3.8KiB"
    assert outputs["weights_xxh3"] == weights
    assert outputs["restarts"] == 1


def test_a_device_that_is_full_is_left_by_the_restart(
    dataset: Path, weights: str, tmp_path: Path, no_leftover_processes: None
) -> None:
    """The tier only makes training faster: it must not end it."""
    outputs = train_here(roomy_step(tmp_path, full_at=7), dataset)
    assert outputs["weights_xxh3"] == weights
    (cause,) = outputs["restart_causes"]
    assert "GPU memory ran out beside the training split" in cause
    assert "Tried to allocate" in cause
    assert outputs["notes"] == {}
