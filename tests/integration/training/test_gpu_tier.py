"""Trainings whose split lies on the device, or whose batches worker processes make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.training import blob_step, events_of, train_here, trained


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


def jitter(workers, **options):
    transform = {"_target_": "blob_samples.Frail", "std": 0.5, **options}
    return {"workers": workers, "sample_transforms": [transform]}


@pytest.mark.usefixtures("no_leftover_processes")
def test_weights_are_those_of_threads_also_after_a_worker_was_killed(tmp_path, dataset):
    outputs = {}
    for name, workers, options in (
        ("threads", 0, {}),
        ("processes", 2, {}),
        ("killed", 3, {"notes": str(tmp_path), "dies_at": 41}),
    ):
        step = blob_step(tmp_path / name, data=jitter(workers, **options))
        outputs[name] = train_here(step, dataset)
        found = [event["batches"] for event in events_of(step, "notes")]
        assert step.current.phase.endswith(f"/2; batches: {found[-1]}" if workers else "/2")
        assert set(found) == ({f"made by {workers} processes"} if workers else set())
    assert len({each["weights_xxh3"] for each in outputs.values()}) == 1
    assert trained(tmp_path / "killed") == trained(tmp_path / "threads")
    assert outputs["processes"]["restarts"] == 0
    (cause,) = outputs["killed"]["restart_causes"]
    assert "The worker" in cause
    assert "SIGKILL" in cause
    assert "data.workers" in cause
