"""The data of all ranks of a training, and the batches that they take together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.data.loader import BatchLoader
from headrace.data.loaders import DataSettings
from headrace.recipe.base import Target
from headrace.recipe.recipe import DataSpec

NAMED = Target.model_validate({"_target_": "my.Own"})
SETTINGS = frozenset(each.name for each in dataclasses.fields(DataSettings))


def settings_of_ranks(
    folder: Path, world_size: int = 1, *, batch: int, seed: int, **keys: Any
) -> list[DataSettings]:
    """The settings of every rank, by keys of `DataSettings`, and of the recipe's `data`."""
    given = {name: value for name, value in keys.items() if name in SETTINGS}
    data = {name: value for name, value in keys.items() if name not in SETTINGS}
    if "reading" in given and given["reading"].own:
        data["dataset"] = NAMED
    spec = DataSpec(global_batch_size=batch, **data)
    return [
        DataSettings(folder=folder, spec=spec, seed=seed, rank=rank, world_size=world_size, **given)
        for rank in range(world_size)
    ]


def steps_of(loaders: Sequence[BatchLoader], epoch: int) -> Iterator[tuple[Mapping[str, Any], ...]]:
    """The batches of all ranks in an epoch, step by step, from their position on."""
    for each in loaders:
        each.set_epoch(epoch)
    return zip(*loaders, strict=True)
