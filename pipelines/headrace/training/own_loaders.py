"""Loaders of the user's own: of a LightningDataModule or of the model.

Lightning shares their samples out over the ranks. Batches are counted here, and the order of an
epoch is drawn from the run's seed, so that a resume in an epoch goes on with its next batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.data import extract_batch_size

from headrace.data.sampling import seed_at


class OwnLoaders:
    """Counts what training is handed by the user's loaders.

    `seed` is that of the run, `rank` counts the ranks with samples of their own, and `tick` is
    called for every batch that a resume skips.

    Attributes:
        num_samples: Samples handed out so far.
        wait_s: Seconds spent waiting for batches so far.
        notes: What users should know about the reading, by subject.
    """

    def __init__(self, seed: int, rank: int, tick: Callable[[], None]) -> None:
        self.num_samples, self.wait_s = 0, 0.0
        self.notes: dict[str, str] = {}
        self._seed, self._rank, self._tick = seed, rank, tick

    def attach(self, trainer: Trainer) -> None:
        """Put a counted loader in place of each that the trainer prepares."""
        prepare = trainer.strategy.process_dataloader
        trainer.strategy.process_dataloader = lambda loader: _Counted(
            self, trainer, prepare(loader)
        )

    def batches(self, trainer: Trainer, loader: Any) -> Iterator[Any]:
        """Yield the batches of an epoch that are left; those of validation are not counted."""
        if not trainer.training:
            yield from loader
            return
        seed_at(self._seed, trainer.current_epoch, 0, self._rank, "loader")
        began_s, batches = time.perf_counter(), iter(loader)
        if not hasattr(loader, "load_state_dict"):  # others begin where they ended
            for _ in range(trainer.fit_loop.epoch_loop.batch_progress.current.ready):
                next(batches, None)
                self._tick()
        for batch in batches:
            self.wait_s += time.perf_counter() - began_s
            self.num_samples += extract_batch_size(batch)
            yield batch
            began_s = time.perf_counter()


class _Counted:
    """A loader whose batches are counted; all else is that of the user's loader."""

    def __init__(self, owner: OwnLoaders, trainer: Trainer, loader: Any) -> None:
        self._owner, self._trainer, self._loader = owner, trainer, loader

    def __iter__(self) -> Iterator[Any]:
        return self._owner.batches(self._trainer, self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
