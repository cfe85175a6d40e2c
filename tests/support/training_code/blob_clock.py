"""A model during whose training days go by: it moves the clock of `tests/support/moved_clock.c`."""

import struct
from pathlib import Path

from blob_models import BlobModel


class Blob(BlobModel):
    """`BlobModel` that moves the clock on by `by_s` seconds in each of the steps `at`, once.

    The file `clock` holds the seconds by which the clock is moved; `began` is its first value.
    """

    def __init__(self, clock, began, by_s, at, **others):
        super().__init__(**others)
        self.clock, self.began, self.by_s, self.at = Path(clock), began, by_s, list(at)

    def training_step(self, batch, index):
        step = self.global_step + 1
        if self.global_rank == 0 and step in self.at:
            seconds = self.began + self.by_s * (self.at.index(step) + 1)
            with self.clock.open("r+b") as file:
                file.write(struct.pack("q", seconds))
        return super().training_step(batch, index)
