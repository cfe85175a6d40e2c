"""User code of the training tests: a transform of single samples, and what forms batches."""

import torch


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


class Stacked:
    """A batch as headrace forms it."""

    def __call__(self, samples):
        return {name: torch.stack([each[name] for each in samples]) for name in samples[0]}
