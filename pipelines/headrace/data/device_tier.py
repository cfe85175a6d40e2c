"""Memory of the GPU as the first tier: a training split that fits beside the model lies there.

Each rank holds the whole split, because the order of an epoch is shuffled over all of it. Fields of
one shape are copied, encoded images decoded once; other fields stay on the host.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from headrace.data.dataset import Reading, SampleReader
from headrace.data.loader import BatchLoader
from headrace.errors import HeadraceError, StepError, shortened
from headrace.files.tiers import reserve_bytes, shown_bytes
from headrace.recipe.site import Tier

_BLOCK_BYTES, _MOST_STEPS = 64 * 2**20, 64
_FAULTS = (HeadraceError, RuntimeError, OSError, MemoryError, ValueError)  # RuntimeError: CUDA's


class DeviceTier:
    """Loads the split of a loader onto a device, a part before each step, if it fits.

    The loader's notes have what became of it. A fault only leaves the split on the host. `is_used`
    says whether memory of the device was taken.
    """

    def __init__(self, tier: Tier, loader: BatchLoader, reading: Reading) -> None:
        self._tier, self._loader, self._reading = tier, loader, reading
        self._first_step: int | None = None
        self._loading: Iterator[None] | None = None
        self.is_used = False

    def look(self, step: int, device: torch.device) -> None:
        """Load the next part, from the first optimizer step on: its memory is then known."""
        self._first_step = step if self._first_step is None else self._first_step
        if step == self._first_step:
            return
        self._loading = self._loading or self._load(device)
        try:
            next(self._loading, None)
        except _FAULTS as error:
            what = error.what if isinstance(error, HeadraceError) else str(error)
            self._note(f"not used: {shortened(' '.join(what.split()))}")

    def _load(self, device: torch.device) -> Iterator[None]:
        while not self._loader.dataset.places.is_whole:
            self._note("waits for shards that are not on this node")
            yield
        of, free = self._reading, free_bytes(device)
        if of.transforms or of.collate or of.own or of.verify:
            raise StepError("samples are changed or verified on the host")
        if free is None:
            raise StepError("no GPU is in use")
        reader = SampleReader(self._loader.dataset, Reading(decoder=of.decoder))
        first = reader.read(np.zeros(1, dtype=np.int64))
        rows = {name: row for name, row in first.items() if isinstance(row, Tensor)}
        sample_bytes, count = sum(row.nbytes for row in rows.values()), len(reader)
        reserve = reserve_bytes(self._tier.reserve, free, in_memory=True)
        usable = min(free - reserve, free if self._tier.budget is None else self._tier.budget)
        if sample_bytes * count > usable:
            needed, most = shown_bytes(sample_bytes * count), shown_bytes(max(usable, 0))
            raise StepError(f"needs {needed}, may take {most}")
        self.is_used = True
        held = {
            name: torch.empty((count, *row.shape[1:]), dtype=row.dtype, device=device)
            for name, row in rows.items()
        }
        block = max(_BLOCK_BYTES // max(sample_bytes, 1), 1)
        blocks_per_step = count // (block * _MOST_STEPS) + 1
        for number, start in enumerate(range(0, count, block)):
            if number % blocks_per_step == 0:
                self._note(f"loads {shown_bytes(sample_bytes * count)}")
                yield
            batch = reader.read(np.arange(start, min(start + block, count)))
            for name, values in held.items():
                if batch[name].shape[1:] != values.shape[1:]:  # PyTorch would stretch it
                    raise StepError(f"samples of '{name}' differ in shape")
                values[start : start + block] = batch[name]
        self._loader.reader.gatherer.held = held
        self._note(f"holds {shown_bytes(sample_bytes * count)}")

    def _note(self, state: str) -> None:
        self._loader.notes["gpu_tier"] = state


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that are free beside this process's peak; None if it is not a GPU."""
    if device.type != "cuda":
        return None
    given_back = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
    return int(max(torch.cuda.mem_get_info(device)[0] - given_back, 0))
