"""User code of the tests of the tier `gpu`: ranks find room for a split, without a GPU."""

from pathlib import Path

import torch
from blob_models import BlobModel

from headrace.data import device_tier

device_tier.free_bytes = lambda device: 2**30


class RoomyModel(BlobModel):
    """A `BlobModel`; in step `full_at` memory runs out, once.

    Args:
        full_at: The step.
        others: Arguments of `BlobModel`.
    """

    def __init__(self, full_at=0, **others):
        super().__init__(**others)
        self.full_at = full_at

    def training_step(self, batch, index):
        mark = Path(self.notes) / "was-full"
        if self.global_step == self.full_at > 0 and not mark.exists():
            mark.touch()
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().training_step(batch, index)
