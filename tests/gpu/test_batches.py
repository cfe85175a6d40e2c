"""Batches come to the GPU whole, from page-locked memory; what is copied back is whole, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headrace.errors import NotFiniteLossError
from headrace.training.checkpoint_writer import HostCopy
from headrace.training.trainer import LossGuard
from headrace_bench.read import loader_epoch
from headrace_bench.samples import SampleShape, random_samples
from headrace_bench.shards import write_dataset

pytestmark = pytest.mark.gpu
COPIES = 20


def test_batches_copied_while_the_loader_goes_on_are_whole(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    torch.cuda.init()
    shape = SampleShape(side=224, num_samples=1024, batch_size=64)
    samples = random_samples(shape)
    write_dataset(tmp_path / "dataset", samples, shape.sample_bytes)
    batches = []
    for image, label in loader_epoch(tmp_path / "dataset", shape.batch_size)():
        assert image.is_pinned()
        batches.append((image.to("cuda", non_blocking=True), label.numpy().copy()))
    assert len(batches) == shape.num_samples // shape.batch_size
    for on_gpu, numbers in batches:
        np.testing.assert_array_equal(on_gpu.cpu().numpy(), samples[numbers])
    rate = copy_rate(torch.empty(shape.batch_size * shape.sample_bytes, dtype=torch.uint8))
    pinned = torch.empty(shape.batch_size * shape.sample_bytes, dtype=torch.uint8, pin_memory=True)
    record_property(
        "told", f"{copy_rate(pinned):.1f} GB/s from page-locked memory, {rate:.1f} else"
    )


def copy_rate(batch: torch.Tensor) -> float:
    """GB/s to the GPU."""
    batch.to("cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(COPIES):
        batch.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return COPIES * batch.nbytes / (time.perf_counter() - began) / 1e9


def test_a_copy_of_a_checkpoint_does_not_change_with_the_weights() -> None:
    weights = torch.rand(1000, 1000, device="cuda")
    before = weights.cpu()
    copied = HostCopy().take({"state_dict": {"weights": weights}})
    weights.mul_(2)
    torch.cuda.synchronize()
    assert copied["state_dict"]["weights"].device.type == "cpu"
    assert torch.equal(copied["state_dict"]["weights"], before)


def test_a_loss_on_the_gpu_that_is_no_number_ends_training() -> None:
    guard = LossGuard(enabled=True)
    trainer = SimpleNamespace(current_epoch=0, global_step=0, accumulate_grad_batches=1)
    module = SimpleNamespace(automatic_optimization=True)
    for trainer.global_step, loss in enumerate((1.0, float("nan"), 1.0), 1):
        outputs = {"loss": torch.tensor(loss, device="cuda")}
        guard._looked_at = time.monotonic()  # asked about once a second only
        guard.on_train_batch_end(trainer, module, outputs)
    with pytest.raises(NotFiniteLossError, match="in step 2"):
        guard.check()
