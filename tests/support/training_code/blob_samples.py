"""User code of the training tests: a transform of single samples, a Dataset, batches."""

import os
import signal
from pathlib import Path

import torch
from torch.utils.data import Dataset


class Jitter:
    """Adds noise to the array of a sample, in training only.

    Args:
        std: Standard deviation of the noise.
    """

    def __init__(self, std):
        self.std = std

    def __call__(self, sample, generator):
        if generator is None:
            return sample
        noise = self.std * torch.randn(sample["array"].shape, generator=generator)
        return {**sample, "array": sample["array"] + noise}


class Frail(Jitter):
    """Kills its process at a sample, once; then it leaves a file in the folder `notes`."""

    def __init__(self, std, notes="", dies_at=-1):
        super().__init__(std)
        self.mark, self.dies_at = Path(notes) / "frail-died", dies_at

    def __call__(self, sample, generator):
        if self.dies_at == int(sample["sample_id"]) and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(sample, generator)


class Stacked:
    """A batch as headrace forms it."""

    def __call__(self, samples):
        return {name: torch.stack([each[name] for each in samples]) for name in samples[0]}


class Backwards(Dataset):
    """The samples of a split, last one first, under numbers of their own.

    Args:
        samples: Those that are packed.
        shift: Added to the array.
    """

    def __init__(self, samples, shift=0.0):
        self.samples, self.shift = samples, shift

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        sample = self.samples[-1 - number]
        return {"array": sample["array"] + self.shift, "label": sample["label"]}
