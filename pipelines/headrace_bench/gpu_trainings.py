"""Parts of the GPU check that train by headrace, on a lease of this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from headrace.files.layout import LeaseFolder
from headrace.recipe.load import parse
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace_bench.gpu_rows import GpuRow, Rows, confirmed, judged, skipped
from headrace_bench.observed_model import SIDE, Observed
from headrace_bench.samples import SampleShape, random_samples
from headrace_bench.shards import write_dataset
from headrace_bench.train import (
    TrainOptions,
    bench_site,
    open_lease,
    time_trainings,
    train_once,
    train_tables,
)

_BATCH, _STEPS = 64, 12
_CHECKPOINT_STEPS, _DIES_AFTER = 3, 8
_SAME, _BF16, _FP16 = 0.01, 0.05, 2.0
"""Allowed relative difference of the last loss to plain training; with float16 the first steps may
be skipped, until the scale of the loss fits."""
_ALONE = "ddp_find_unused_parameters_true"
"""Lightning's name of DDP; it uses a process group also with a single rank."""

SHARE_GOAL, UTILISATION_GOAL, START_GOAL = 0.98, 0.98, 1.3
"""Of throughput over the plain loop's, of time without a wait for batches, of start over its."""


class _Keys(NamedTuple):
    """Keys of `trainer`, and their effect on a training."""

    trainer: Mapping[str, object]
    expected: Mapping[str, object]
    """Expected values of `Observed`; all others are as without the keys."""
    ranks: int = 1
    tolerance: float = _SAME
    """Allowed difference of the loss, as a share of its last loss; infinite if ranks normalise
    their own samples."""


def _all_keys(ranks: int) -> dict[str, _Keys]:
    """Return the keys by the name of the part."""
    alone, own = {"strategy": _ALONE}, _SAME if ranks == 1 else math.inf
    spread = {"backend": "nccl", "world_size": ranks}
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    sync = {"sync_batchnorm": True, **(alone if ranks == 1 else {})}
    sharded = {"is_sharded": True, "backend": backend, "world_size": ranks}
    bf16, fp16 = {"output_dtype": "torch.bfloat16"}, {"output_dtype": "torch.float16"}
    return {
        "nccl": _Keys(alone, {"backend": "nccl"}),
        "nccl-all": _Keys({}, spread, ranks, own),
        "sync-batchnorm": _Keys(sync, {**spread, "has_sync_batchnorm": True}, ranks),
        "bf16-mixed": _Keys({"precision": "bf16-mixed"}, bf16, tolerance=_BF16),
        "16-mixed": _Keys({"precision": "16-mixed"}, fp16, tolerance=_FP16),
        "channels-last": _Keys({"channels_last": True}, {"is_channels_last": True}),
        "fsdp2": _Keys({"strategy": "fsdp"}, sharded, ranks, own),
        "compile": _Keys({"compile": True}, {"is_compiled": True}),
    }


def keys(folder: Path) -> Rows:
    """Train with and without the keys of the folder's name; compare both trainings."""
    name, ranks = folder.name, num_ranks()
    if name == "nccl-all" and ranks == 1:
        return (skipped(name, "there is one GPU"),)
    asked = _all_keys(ranks)[name]
    with _bench(folder, asked.ranks) as bench:
        bench.train("plain", {}, 1)
        bench.train("with-keys", asked.trainer, asked.ranks)
    plain, found = bench.observe("plain"), bench.observe("with-keys")
    finding = (
        f"{found.world_size} ranks on {found.device}, {found.backend or 'no group'}, "
        f"{found.output_dtype}; last loss {found.losses[-1]:.4f}, plain {plain.losses[-1]:.4f}"
    )
    return (confirmed(name, finding, differences(plain, found, asked.expected, asked.tolerance)),)


def resume(folder: Path) -> Rows:
    """Compare the weights of a training with a killed rank with those of an undisturbed one."""
    ranks = num_ranks()
    trainer = {"deterministic": True, "checkpoint_every_steps": _CHECKPOINT_STEPS}
    with _bench(folder, ranks) as bench:
        left = bench.train("left-alone", trainer, ranks, dropout=0.2)
        killed = bench.train("killed", trainer, ranks, dropout=0.2, dies_after=_DIES_AFTER)
    return (resumed(left, killed, bench.observe("killed").device),)


def resumed(left: Mapping[str, Any], killed: Mapping[str, Any], device: str) -> GpuRow:
    """Return the row of a resume, from the outputs of both train steps."""
    problems = []
    if not killed["restarts"]:
        problems.append("no rank was killed")
    if left["weights_xxh3"] != killed["weights_xxh3"]:
        hashes = f"{killed['weights_xxh3']}, not {left['weights_xxh3']}"
        problems.append(f"other weights after the resume: {hashes}")
    finding = f"killed after step {_DIES_AFTER} of {_STEPS}, identical weights, on {device}"
    return confirmed("resume", finding, problems)


def speed(folder: Path) -> Rows:
    """Run `headrace bench train`: ResNet-50 at 224 pixels on GPUs; on a CPU small, no goal."""
    on_gpu, ranks = torch.cuda.is_available(), num_ranks()
    size = {"batch_size": 64, "side": 224, "steps": 100, "rounds": 2}
    if not on_gpu:
        size = {"batch_size": 4, "side": 32, "steps": 8, "rounds": 1}
    options = TrainOptions(ranks=ranks, folder=folder, **size)
    found = time_trainings(options, print)
    rate, _ = train_tables(found, options)
    steadiest = min(found["headrace"], key=lambda each: each.data_wait)
    used = 1 - steadiest.data_wait
    first = {name: min(each.first - each.asked for each in all_) for name, all_ in found.items()}
    share, begun = rate.of_limit["headrace"], first["headrace"] / first["torchrun"]
    samples_per_s = rate.rows[1].samples_per_s or 0.0
    what = f"{options.side} px, batch {options.batch_size}, {ranks} ranks"
    took = f"{first['headrace']:.1f} s, {begun:.2f} of torchrun's {first['torchrun']:.1f} s"
    share_words = f"{share:.3f}: ResNet-50, {samples_per_s:,.0f} samples/s at {what}"
    used_words = f"{used:.3f} of the time after the warm-up without a wait for batches"
    waited_s = steadiest.start_wait_s
    waited = f"{waited_s:.2f} s for the batches of the warm-up"
    least, used_goal, most = (SHARE_GOAL, UTILISATION_GOAL, START_GOAL) if on_gpu else (None,) * 3
    return (
        judged("plain-loop-share", share, share_words, at_least=least),
        judged("utilisation", used, used_words, at_least=used_goal),
        judged("wait-at-start", waited_s, waited, unit="s"),
        judged("first-step", begun, took, at_most=most),
    )


def num_ranks() -> int:
    """Return the number of ranks that train together: the GPUs that PyTorch finds, at least one."""
    return max(torch.cuda.device_count(), 1)


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """An open lease, with a dataset of one global batch."""

    folder: Path
    lease: LeaseFolder
    site: Site

    def train(
        self, name: str, trainer: Mapping[str, object], ranks: int, **model: object
    ) -> dict[str, Any]:
        """Train `ObservedNet` for `_STEPS` steps; return the outputs of the train step."""
        content: dict[str, Any] = {
            "name": name,
            "seed": 5,
            "dataset": {"name": "bench", "path": "given to the step"},
            "data": {"global_batch_size": _BATCH},
            "model": {
                "_target_": "headrace_bench.observed_model.ObservedNet",
                "file": str(self._file(name)),
                **model,
            },
            "train": {"ranks_per_node": ranks},
            "trainer": {
                "accelerator": "gpu" if torch.cuda.is_available() else "cpu",
                "max_epochs": _STEPS,
                **trainer,
            },
            "evaluate": None,
        }
        return train_once(self.lease, self.site, parse(Recipe, content, "the check"), name)

    def observe(self, name: str) -> Observed:
        """Return what the model of that training has reported."""
        return Observed.model_validate_json(self._file(name).read_bytes())

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"


@contextmanager
def _bench(folder: Path, ranks: int) -> Iterator[_Bench]:
    shape = SampleShape(side=SIDE, num_samples=_BATCH, batch_size=_BATCH)
    write_dataset(folder / "dataset", random_samples(shape), shape.sample_bytes)
    site = bench_site(folder, ranks, TrainOptions(ranks=ranks, folder=folder).threads)
    with open_lease(site) as lease:
        yield _Bench(folder=folder, lease=lease, site=site)


def differences(
    plain: Observed, found: Observed, expected: Mapping[str, object], tolerance: float
) -> list[str]:
    """Return the differences between a training with keys of the recipe and the expected one.

    All values except the `expected` ones have to equal those of `plain`, trained without the keys
    on one rank; the last loss may differ by `tolerance`, a share of the plain loss.
    """
    wanted = plain.model_dump() | dict(expected)
    problems = [
        f"{key} is {value}, not {wanted[key]}"
        for key, value in found.model_dump().items()
        if key != "losses" and value != wanted[key]
    ]
    if not found.is_same_on_all_ranks:
        problems.append("ranks end with different weights")
    losses, last = found.losses, plain.losses[-1]
    if not losses[-1] < 0.9 * losses[0]:  # also true for NaN
        problems.append(f"it learns nothing: the loss goes from {losses[0]:g} to {losses[-1]:g}")
    if not abs(losses[-1] - last) <= tolerance * last:
        problems.append(f"the last loss is {losses[-1]:g}, of plain training {last:g}")
    return problems
