"""Fetches the shards of coming batches ahead, when they are not on this node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from headrace.data.order import Order
from headrace.errors import UserError
from headrace.recipe.data import DataSpec
from headrace.shards.dataset import ShardedDataset


class Needs:
    """Which batches of one epoch need which of the shards that are far away.

    Args:
        dataset: The split.
        order: The batches of this rank.
        epoch: The epoch.
    """

    def __init__(self, dataset: ShardedDataset, order: Order, epoch: int) -> None:
        self.epoch = epoch
        self._num_batches = order.num_batches
        self._far = np.array(sorted(dataset.places.far), dtype=np.int64)
        found = [np.empty(0, dtype=np.int64)]
        for number in range(order.num_batches):
            shards = dataset.shards_with(order.batch(epoch, number))
            found.append(shards * self._num_batches + number)
        self._keys = np.unique(np.concatenate(found))  # by shard, then by batch

    def after(self, number: int) -> dict[int, float]:
        """The next batch, from `number` on, that needs a shard; soonest first, others left out."""
        firsts = self._far * self._num_batches
        places = np.searchsorted(self._keys, firsts + number)
        keys = np.append(self._keys, np.iinfo(np.int64).max)[places]
        needed = keys < firsts + self._num_batches
        shards, batches = self._far[needed], (keys - firsts)[needed]
        soonest = np.argsort(batches, kind="stable")
        return dict(zip(shards[soonest].tolist(), batches[soonest].tolist(), strict=True))


class ReadAhead:
    """Fetches shards in the order in which batches need them, by a thread of its own.

    It holds no more than the scratch has room for, see `data.read_ahead`.

    Args:
        dataset: The split.
        order: The batches of this rank.
    """

    def __init__(self, dataset: ShardedDataset, order: Order) -> None:
        self._dataset = dataset
        self._order = order
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-stream")
        self._task: Future[None] | None = None
        self._reading: dict[int, tuple[int, int]] = {}
        self._last = (0, 0)
        self._needs: Needs | None = None
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, epoch: int, number: int) -> Iterator[None]:
        """Read a batch in the block; several threads may do so at once.

        Raises:
            StoreError: A shard could not be fetched ahead.
            ShardError: A shard is damaged.
        """
        key = threading.get_ident()
        with self._lock:
            idle = self._task is None or self._task.done()
            if idle:
                self.wait()
            self._reading[key] = self._last = (epoch, number)
            if idle:
                self._task = self._pool.submit(self._fetch)
        try:
            yield
        finally:
            with self._lock:
                del self._reading[key]

    def wait(self) -> None:
        """Wait until there is nothing to fetch ahead at the moment; errors as `reading`."""
        if self._task is not None:
            self._task.result()

    def _fetch(self) -> None:
        scratch = self._dataset.places.scratch()
        while True:
            with self._lock:
                epoch, number = min(self._reading.values(), default=self._last)
            if self._needs is None or self._needs.epoch != epoch:
                self._needs = Needs(self._dataset, self._order, epoch)
            needs = self._needs.after(number)
            scratch.needs(needs)
            coming = list(needs)[: scratch.room]
            missing = next((shard for shard in coming if not scratch.holds(shard)), None)
            if missing is None or not scratch.fetch_ahead(missing):
                return


def shards_held(spec: DataSpec) -> int:
    """Shards that each rank holds at once, at most, of a split that is not on its node."""
    window = spec.shuffle_window or 1
    return window + (spec.read_ahead or max(window, 2))


def check_streamable(dataset: ShardedDataset, spec: DataSpec) -> None:
    """Make sure that batches of a training split can be read without holding all of it.

    Raises:
        UserError: Every batch takes samples from the whole split.
    """
    num_far = len(dataset.places.far)
    if spec.shuffle and spec.shuffle_window is None and num_far > shards_held(spec):
        raise UserError(
            f"{num_far} of {len(dataset.shards)} shards of split '{dataset.split}' are not on "
            f"this node, which holds {shards_held(spec)} of them at once, but batches are shuffled "
            "over the whole split",
            "Set data.shuffle_window, such as 4, or stage the whole dataset.",
        )
