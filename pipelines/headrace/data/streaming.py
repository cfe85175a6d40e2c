"""Fetches the shards of coming batches ahead, when they are not on this node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache, partial

import numpy as np

from headrace.data.order import Order
from headrace.errors import UserError
from headrace.recipe.recipe import DataSpec
from headrace.shards.dataset import ShardedDataset
from headrace.shards.scratch import ShardScratch

AT_ONCE = 4
"""Shards that each rank fetches at once, at most."""


class ShardDemand:
    """Which batches of one epoch need which of the shards that are far away."""

    def __init__(self, dataset: ShardedDataset, order: Order, epoch: int) -> None:
        self._num_batches = order.num_batches
        self._far = np.array(sorted(dataset.places.far), dtype=np.int64)
        found = [np.empty(0, dtype=np.int64)]
        for number in range(order.num_batches):
            shards = dataset.shards_with(order.batch(epoch, number))
            found.append(shards * self._num_batches + number)
        self._keys = np.unique(np.concatenate(found))  # by shard, then by batch

    def after(self, number: int) -> dict[int, float]:
        """Return the first batch, from `number` on, that needs each shard, the soonest first."""
        firsts = self._far * self._num_batches
        places = np.searchsorted(self._keys, firsts + number)
        keys = np.append(self._keys, np.iinfo(np.int64).max)[places]
        needed = keys < firsts + self._num_batches
        shards, batches = self._far[needed], (keys - firsts)[needed]
        soonest = np.argsort(batches, kind="stable")
        return dict(zip(shards[soonest].tolist(), batches[soonest].tolist(), strict=True))


class ReadAhead:
    """Fetches shards in the order in which batches need them, several at once.

    Near the end of an epoch it continues with the first shards of the next epoch, if there is one
    (`num_epochs`; None: unknown). It holds at most what the scratch has room for, see
    `data.read_ahead`.
    """

    def __init__(
        self, dataset: ShardedDataset, order: Order, num_epochs: int | None = None
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._num_epochs = num_epochs
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="headrace-stream")
        self._tasks: set[Future[None]] = set()
        self._reading: dict[int, tuple[int, int]] = {}
        self._last = (0, 0)
        self._demand_of = lru_cache(maxsize=2)(partial(ShardDemand, dataset, order))
        self._lock = threading.Lock()
        self._planning = threading.Lock()

    @contextmanager
    def reading(self, epoch: int, number: int) -> Iterator[None]:
        """Read a batch in the block; several threads may do so at once.

        Raises the errors of fetching ahead.
        """
        key = threading.get_ident()
        self._raise_errors()
        with self._lock:
            self._reading[key] = self._last = (epoch, number)
        self._start()
        try:
            yield
        finally:
            with self._lock:
                del self._reading[key]

    def wait(self) -> None:
        """Wait until there is nothing to fetch ahead at the moment; errors as `reading`."""
        while self._tasks:
            wait(list(self._tasks))
            self._raise_errors()

    def _raise_errors(self) -> None:
        with self._lock:
            done = [task for task in self._tasks if task.done()]
            self._tasks.difference_update(done)
        for task in done:
            task.result()

    def _start(self) -> None:
        """Let one more thread look for a shard to fetch, unless all are busy."""
        with self._lock:
            if sum(not task.done() for task in self._tasks) < AT_ONCE:
                self._tasks.add(self._pool.submit(self._fetch))

    def _fetch(self) -> None:
        scratch = self._dataset.places.scratch()
        while (number := self._claim(scratch)) is not None:
            self._start()  # looks for the next one meanwhile
            scratch.fetch_claimed(number)

    def _claim(self, scratch: ShardScratch) -> int | None:
        with self._planning:
            with self._lock:
                epoch, number = min(self._reading.values(), default=self._last)
            demand = self._coming(epoch, number, scratch.room)
            scratch.needs(demand)
            return scratch.claim_ahead(list(demand)[: scratch.room])

    def _coming(self, epoch: int, number: int, room: int) -> dict[int, float]:
        """Return when shards are needed, in batches from the epoch's first; the soonest first."""
        demand = self._demand_of(epoch).after(number)
        if len(demand) >= room or epoch + 1 == self._num_epochs:
            return demand
        first = self._order.num_batches
        for shard, batch in self._demand_of(epoch + 1).after(0).items():
            demand.setdefault(shard, first + batch)
        return demand


def in_turn(spec: DataSpec) -> bool:
    """Whether batches need few shards at a time, so that shards can be fetched for them."""
    return spec.sampling == "uniform" and (spec.shuffle_window is not None or not spec.shuffle)


def shards_held(spec: DataSpec) -> int:
    """Return how many shards of a split that is not on its node each rank holds, at most."""
    window = spec.shuffle_window or 1
    return window + (spec.read_ahead or max(window, 2))


def check_streamable(dataset: ShardedDataset, spec: DataSpec) -> None:
    """Raise a `UserError` if every batch needs shards of the whole split, most of them far."""
    num_far = 0 if dataset.places.has_room_for_all else len(dataset.places.far)
    if spec.shuffle and spec.shuffle_window is None and num_far > shards_held(spec):
        raise UserError(
            f"{num_far} of {len(dataset.shards)} shards of split '{dataset.split}' are not on "
            f"this node, which holds {shards_held(spec)} of them at once, but batches are shuffled "
            "over the whole split",
            "Set data.shuffle_window, such as 4, or stage the whole dataset.",
        )
