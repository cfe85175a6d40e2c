"""A `Dataset` of the user's over a split, the recipe's `data.dataset`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.data.sampling import Indices
from headrace.data.transforms import SAMPLE_ID, Sample
from headrace.errors import DataError, UserError, blaming_user_code
from headrace.shards.dataset import ShardedDataset

_HINT = (
    "data.dataset names a class that is given the samples of a split, as a SampleDataset. It has "
    "__len__, and __getitem__(number), which gives a dict and is called by several threads at once."
)


class OwnSamples:
    """What the user's `Dataset` makes of a split; its items are counted from 0.

    Args:
        name: Of the class, for errors.
        made: The user's object.
        dataset: The split that it was made for.
    """

    def __init__(self, name: str, made: Any, dataset: ShardedDataset) -> None:
        self._name, self._made, self._dataset = name, made, dataset
        with blaming_user_code(f"{name}.__len__", _HINT):
            self._len = operator.index(len(made))
        if self._len == 0:
            raise DataError(f"{name} has no samples of split '{dataset.split}'", _HINT)

    def __len__(self) -> int:
        return self._len

    @property
    def is_as_long(self) -> bool:
        """Whether there are as many items as samples in the split."""
        return self._len == len(self._dataset)

    def samples(self, indices: Indices) -> list[Sample]:
        """Items, `indices (n,) int64`; those without a `sample_id` get one.

        It is that of the split's sample at this place, where there are as many items as samples;
        else the number of the item.

        Raises:
            UserCodeError: The user's code raised, or gave something else than a dict.
        """
        ids = self._dataset.gather(SAMPLE_ID, indices) if self.is_as_long else indices
        both = zip(indices.tolist(), ids.tolist(), strict=True)
        return [{SAMPLE_ID: torch.tensor(number), **self._item(index)} for index, number in both]

    def _item(self, index: int) -> Sample:
        where = f"item {index} of split '{self._dataset.split}'"
        with blaming_user_code(f"{self._name}.__getitem__", _HINT, where):
            item = self._made[index]
            if not isinstance(item, dict):
                raise TypeError(f"it returned a {type(item).__name__}, no dict")
        return item


class OwnDataset:
    """Makes the user's `Dataset` of a split, once for each split in use.

    Args:
        name: Of the class, for errors.
        make: The class; takes the samples of a split.
    """

    def __init__(self, name: str, make: Callable[[Sequence[Sample]], Any]) -> None:
        self._name, self._make = name, make
        self._made: dict[ShardedDataset, OwnSamples] = {}

    def over(self, dataset: ShardedDataset, samples: Any) -> OwnSamples:
        """The user's samples of a split, of which `samples` are the packed ones.

        Raises:
            UserCodeError: The user's code raised.
            DataError: There are none.
        """
        if dataset not in self._made:
            with blaming_user_code(self._name, _HINT, f"split '{dataset.split}'"):
                made = self._make(samples)
            self._made[dataset] = OwnSamples(self._name, made, dataset)
        return self._made[dataset]


def check_each_once(own: OwnSamples | None, dataset: ShardedDataset) -> None:
    """Refuse to evaluate items that are not the samples of the split, as many as there are."""
    if own is not None and not own.is_as_long:
        raise UserError(
            f"data.dataset makes {len(own)} items of the {len(dataset)} samples of split "
            f"'{dataset.split}', and evaluation takes each sample exactly once",
            "Let it give one item a sample, or set evaluate: null.",
        )
