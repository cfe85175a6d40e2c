"""Training: headrace's train step on a lease of this machine, and a plain DDP loop by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import LeaseSpec
from headrace.errors import LeaseError, StepError, UserError
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.leases.run_leases import PRELOAD
from headrace.processes.working_folder import python_module
from headrace.recipe.load import parse
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.states import LeaseState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepSpec
from headrace_bench.contest import Tick
from headrace_bench.machine import num_cores
from headrace_bench.records import BenchRow, BenchTable, Lap
from headrace_bench.samples import SampleShape, random_samples
from headrace_bench.shards import write_dataset
from headrace_bench.timed_model import WARM_UP
from headrace_bench.workspace import workspace

_LIFETIME_S = 4 * 3600
_LOST_AFTER_S = 60.0
_POLL_S = 0.02
_MODEL_BYTES = 400_000_000
"""Bytes of a checkpoint: weights and momentum."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to train, and how often."""

    ranks: int = 2
    """Processes that train together."""
    batch_size: int = 16
    """Samples per batch of each."""
    side: int = 32
    """Height and width of a picture."""
    steps: int = 20
    """Optimizer steps of a lap."""
    rounds: int = 3
    folder: Path
    """Folder for dataset, lease and checkpoints."""

    @property
    def threads(self) -> int:
        """Threads of each rank: its share of the cores."""
        return max(num_cores() // self.ranks, 1)

    @property
    def sample_bytes(self) -> int:
        """Bytes of a picture."""
        return 3 * self.side**2


@dataclass(frozen=True)
class TrainTimes:
    """Times of events in a training, seconds since the epoch."""

    asked: float
    first: float
    """End of its first optimizer step."""
    warm: float
    """End of the warm-up."""
    last: float
    start_wait_s: float = 0.0
    """Seconds of waiting for batches in the warm-up; 0 for the plain loop, which has no loader."""
    wait_s: float = 0.0
    """The same after the warm-up."""

    @property
    def data_wait(self) -> float:
        """Share of the time after the warm-up that it waited for batches."""
        return self.wait_s / max(self.last - self.warm, 1e-9)


def bench_train(options: TrainOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return the tables of training: samples per second, and the time until the first step's end.

    Raises:
        UserError: There are too few steps, or too few samples for the network.
    """
    return train_tables(time_trainings(options, tick), options)


def time_trainings(options: TrainOptions, tick: Tick) -> dict[str, list[TrainTimes]]:
    """Train alternately by `torchrun` and `headrace`; return the times. Raises as `bench_train`.

    Side effects: writes into `options.folder`, and removes it at the end.
    """
    if options.steps <= WARM_UP or options.batch_size < 2:
        raise UserError(
            f"{options.steps} steps of {options.batch_size} samples cannot be measured",
            f"The first {WARM_UP} steps do not count, and batch normalisation needs 2 samples.",
        )
    num_samples = options.steps * options.batch_size * options.ranks
    needed = 2 * num_samples * options.sample_bytes + (options.rounds + 1) * _MODEL_BYTES
    with workspace(options.folder, needed) as folder:
        tick("making a dataset and opening a lease")
        size = options.batch_size
        shape = SampleShape(side=options.side, num_samples=num_samples, batch_size=size)
        write_dataset(folder / "dataset", random_samples(shape), shape.sample_bytes)
        site = bench_site(folder, options.ranks, options.threads)
        with open_lease(site) as lease:
            trainings: dict[str, Callable[[int], TrainTimes]] = {
                "torchrun": lambda _: _bare(folder, options),
                "headrace": partial(_ours, lease, site, options),
            }
            found: dict[str, list[TrainTimes]] = {name: [] for name in trainings}
            for number in range(options.rounds):
                for name, train in trainings.items():
                    tick(f"{name}, round {number + 1} of {options.rounds}")
                    found[name].append(train(number))
            return found


def train_tables(
    found: dict[str, list[TrainTimes]], options: TrainOptions
) -> tuple[BenchTable, BenchTable]:
    """Return samples per second, and seconds to the first step, by the times of trainings."""
    batch = options.ranks * options.batch_size
    num_samples = (options.steps - WARM_UP) * batch

    def rate(times: TrainTimes) -> Lap:
        num_bytes = num_samples * options.sample_bytes
        return Lap(num_samples=num_samples, num_bytes=num_bytes, seconds=times.last - times.warm)

    def start(times: TrainTimes) -> Lap:
        seconds, num_bytes = times.first - times.asked, batch * options.sample_bytes
        return Lap(num_samples=batch, num_bytes=num_bytes, seconds=seconds)

    ours_s, plain_s = (
        min(start(each).seconds for each in found[n]) for n in ("headrace", "torchrun")
    )
    what = f"ResNet-50, {options.side} x {options.side} pictures, {options.ranks} ranks with "
    what += f"{options.threads} threads and {options.batch_size} samples each, "
    what += f"on {'GPUs' if torch.cuda.is_available() else 'CPUs'}"
    steps = f"Steps {WARM_UP + 1} to {options.steps} of a training; goal: 0.98 of torchrun's."
    begin = (
        f"torchrun: {plain_s:.1f} s from its start; headrace: {ours_s:.1f} s from the submission "
        f"of the step to an open lease, {ours_s / plain_s:.2f} of that; goal: at most 1.3."
    )
    return (
        BenchTable(title=f"train, {what}", rows=_rows(found, rate), notes=(steps,)),
        BenchTable(title=f"first optimizer step, {what}", rows=_rows(found, start), notes=(begin,)),
    )


def _rows(
    found: dict[str, list[TrainTimes]], lap: Callable[[TrainTimes], Lap]
) -> tuple[BenchRow, ...]:
    plain = BenchRow(name="torchrun", kind="limit", settings="plain DDP loop, samples in memory")
    ours = BenchRow(name="headrace", kind="headrace", settings="a train step, samples from shards")
    return tuple(
        row.model_copy(update={"is_yardstick": True, "laps": tuple(map(lap, found[row.name]))})
        for row in (plain, ours)
    )


def _bare(folder: Path, options: TrainOptions) -> TrainTimes:
    file = folder / "bare.json"
    numbers = map(str, (options.steps, options.batch_size, options.side))
    ranks = ("--standalone", "--nproc-per-node", str(options.ranks), "--no-python")
    loop = python_module("headrace_bench.bare_loop", str(file), *numbers)
    asked = time.time()
    ended = subprocess.run(
        python_module("torch.distributed.run", *ranks, *loop),
        env=os.environ | {"OMP_NUM_THREADS": str(options.threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if ended.returncode != 0:
        raise StepError("torchrun failed", ended.stdout.decode(errors="replace")[-2000:])
    return TrainTimes(asked, *json.loads(file.read_text()))


def _ours(lease: LeaseFolder, site: Site, options: TrainOptions, number: int) -> TrainTimes:
    file = Path(site.folder) / f"train-{number}.json"
    recipe, asked = _recipe(options, file), time.time()
    train_once(lease, site, recipe, file.stem)
    return TrainTimes(asked, *json.loads(file.read_text()))


def train_once(lease: LeaseFolder, site: Site, recipe: Recipe, run_id: str) -> dict[str, Any]:
    """Train as a new run, on `dataset` of the folder of a `bench_site`; return the outputs.

    Raises:
        LeaseError: The lease has ended.
        StepError: The train step failed.
    """
    run = SiteFolder(Path(site.folder)).run(run_id)
    run.path.mkdir(parents=True)
    write_record(run.recipe, recipe)
    write_record(run.site, site)
    spec = StepSpec(
        key=f"{run_id}/train/1",
        kind="train",
        run_id=run_id,
        name="train",
        attempt=1,
        run_folder=str(run.path),
        inputs={"dataset": f"{site.folder}/dataset"},
    )
    step = mailbox.submit(lease, spec)
    while (result := mailbox.outcome(step)) is None:
        if not (files := LeaseFiles.read(lease)).state().is_active:
            raise LeaseError("The lease has ended", files.why_ended)
        time.sleep(_POLL_S)
    if result.failure is not None:
        raise StepError("The train step failed", result.failure.message)
    return result.outputs


def _recipe(options: TrainOptions, file: Path) -> Recipe:
    content: dict[str, Any] = {
        "name": "bench",
        "dataset": {"name": "bench", "path": "given to the step"},
        "data": {"global_batch_size": options.batch_size * options.ranks},
        "model": {
            "_target_": "headrace_bench.timed_model.TimedResNet50",
            "steps": options.steps,
            "file": str(file),
        },
        "trainer": {
            "accelerator": "gpu" if torch.cuda.is_available() else "cpu",
            "max_epochs": 1,
            "deterministic": False,  # as the plain loop: a GPU's deterministic kernels are slower
            "checkpoint_every_steps": options.steps + 1,
            "loggers": [],
        },
        "evaluate": None,
    }
    return parse(Recipe, content, "the benchmark")


def bench_site(folder: Path, ranks: int, threads: int) -> Site:
    """Return this machine as a site, with its folder, and the models of this package allowed."""
    size = {"ranks_per_node": ranks, "threads_per_rank": threads}
    role = {"kind": "gang", "lifetime": _LIFETIME_S, **size}
    content: dict[str, Any] = {
        "name": "bench",
        "folder": str(folder),
        "roles": {"cpu": role, "gpu": role},
        "tiers": [{"name": "bench", "folder": str(folder / "tier"), "reserve": 0}],
        "allowed_targets": ["headrace_bench.timed_model", "headrace_bench.observed_model"],
    }
    return parse(Site, content, "the benchmark")


@contextmanager
def open_lease(site: Site) -> Iterator[LeaseFolder]:
    """Open a lease of this machine, which ends with the block, or with this process."""
    folder = SiteFolder(Path(site.folder)).lease("bench")
    spec = LeaseSpec.of_this_process(folder, site, "gpu", site.roles["gpu"])
    patient = {"preload": PRELOAD, "lost_after_s": _LOST_AFTER_S}
    try:
        lease_client.start(folder, spec.model_copy(update=patient))
        while (files := LeaseFiles.read(folder)).state() is LeaseState.STARTING:
            time.sleep(_POLL_S)
        if files.state() is not LeaseState.READY:
            raise LeaseError("No lease could be opened", files.why_ended)
        yield folder
    finally:
        lease_client.end(folder)
