"""The training and validation batches of one rank, without a framework around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from headrace.data.dataset import Reading, SampleReader
from headrace.data.decode import num_cores
from headrace.data.loader import BatchLoader
from headrace.data.order import EachOnceOrder, Order, TrainOrder, choose_epochs
from headrace.data.sampling import Epochs, whole
from headrace.data.streaming import check_streamable
from headrace.data.transforms import Transform
from headrace.data.workers import Workers
from headrace.errors import UserError
from headrace.processes.identity import holds_gpu
from headrace.recipe.dataset import TRAIN, VALIDATION
from headrace.recipe.recipe import DataSpec
from headrace.recipe.site import Tier
from headrace.shards.dataset import ShardedDataset
from headrace.shards.shard_locations import ShardSource


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What a rank needs to read its share."""

    folder: Path
    """Folder of the dataset, packed or staged."""
    spec: DataSpec
    seed: int
    rank: int = 0
    world_size: int = 1
    transforms: tuple[Transform, ...] = ()
    """Applied to every batch."""
    augment: tuple[Transform, ...] = ()
    """Applied to training batches, after `transforms`."""
    reading: Reading = field(default_factory=Reading)
    source: ShardSource | None = None
    """Source of shards that are not in `folder`."""
    skipped: tuple[str, ...] = ()
    """Files of damaged shards, which are left out."""
    overlap: bool = False
    """Whether epoch 0 may start before all shards are there, see `stage.overlap`."""
    accumulate: int = 1
    """Batches per optimizer step."""
    num_epochs: int | None = None
    """Number of epochs, so that nothing is fetched for an epoch after the last; null: unknown."""
    gpu_tier: Tier | None = None
    """The site's first tier if it is memory of GPUs."""
    read_again: Callable[[], Reading] | None = None
    """Makes `reading` again in a worker process; null: the processes inherit it."""


_MOST_WORKERS = 16
"""That `auto` starts for a rank."""


class Loaders:
    """Batches of one rank.

    Attributes:
        train: Batches to train on, with a position that can be saved.
        epochs: Which samples each epoch takes.
    """

    def __init__(self, settings: DataSettings) -> None:
        self._settings = settings
        dataset = self._split(TRAIN)
        self.epochs = self._epochs(dataset)
        check_streamable(dataset, settings.spec)
        order = TrainOrder(
            num_samples=self.epochs.num_samples,
            seed=settings.seed,
            global_batch_size=settings.spec.global_batch_size,
            accumulate=settings.accumulate,
            rank=settings.rank,
            world_size=settings.world_size,
            drop_last=settings.spec.drop_last,
            epochs=self.epochs,
        )
        self._workers = self._start_workers(dataset, order)
        self.train = self._loader(dataset, order)

    @property
    def has_validation(self) -> bool:
        """Whether the dataset has samples to validate on."""
        return self.train.dataset.manifest.splits.get(VALIDATION, 0) > 0

    def validation(self) -> BatchLoader:
        """Return batches of the validation split, each sample once over all ranks."""
        dataset = self._split(VALIDATION)
        order = EachOnceOrder(
            num_samples=len(SampleReader(dataset, self._settings.reading)),
            global_batch_size=self.train.order.batch_span,
            rank=self._settings.rank,
            world_size=self._settings.world_size,
        )
        return self._loader(dataset, order)

    def _epochs(self, dataset: ShardedDataset) -> Epochs:
        settings = self._settings
        if settings.spec.dataset is not None:  # its items differ from the shards' samples
            num_items = len(SampleReader(dataset, settings.reading))
            return whole(num_items, settings.seed, settings.spec.shuffle)
        return choose_epochs(dataset, settings.spec, settings.seed, settings.overlap)

    def _split(self, name: str) -> ShardedDataset:
        of = self._settings
        return ShardedDataset(of.folder, name, of.source, of.spec.fold, of.skipped)

    def _loader(self, dataset: ShardedDataset, order: Order) -> BatchLoader:
        of, prefetch = self._settings, self._settings.spec.prefetch
        loader = BatchLoader(
            dataset, order, prefetch=prefetch, reading=of.reading, num_epochs=of.num_epochs
        )
        if self._workers is not None and dataset.places.is_whole:
            loader.workers, loader.notes = self._workers, self._workers.notes
        return loader

    def _start_workers(self, dataset: ShardedDataset, order: Order) -> Workers | None:
        of = self._settings
        is_auto, count = of.spec.workers == "auto", of.spec.workers
        if count == "auto":  # a single process is not faster than threads
            cores = min(num_cores(), _MOST_WORKERS) if of.reading.is_per_sample else 1
            count = cores if cores > 1 and of.spec.prefetch else 0
        if count == 0 or not dataset.places.is_whole:
            return None
        if holds_gpu():
            if is_auto:
                return None
            raise UserError(
                "data.workers start processes, and this one has begun to use a GPU, which does not "
                "survive a fork",
                "Call headrace.script.loader before the GPU is used, or write data.workers: 0.",
            )
        again = cache(of.read_again or (lambda: of.reading))
        num_batches = of.num_epochs and of.num_epochs * order.num_batches
        return Workers(
            lambda split: SampleReader(self._split(split), again()),
            count,
            is_auto=is_auto,
            num_batches=num_batches,
        )
