"""A `Dataset` of the user's over a split: order, ids, positions, faults."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.data.dataset import OwnDataset, Reading
from headrace.data.loaders import Loaders
from headrace.errors import DataError, RecipeError, UserCodeError
from headrace.recipe.load import parse
from headrace.recipe.recipe import Recipe
from support.loaders import settings_of_ranks
from support.shards import write_dataset

NUM, VAL, BATCH = 23, 5, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Samples that are their number."""
    folder = tmp_path_factory.mktemp("own") / "dataset"
    values = {"value": np.arange(NUM + VAL, dtype=np.int64)}
    write_dataset(folder, values, splits={"train": NUM, "val": VAL}, shard_samples=5)
    return folder


class Backwards:
    """Each sample with the one before it, last one first."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, Any]:
        place = len(self.samples) - 1 - number
        sample, before = self.samples[place], self.samples[place - 1]
        return {"value": sample["value"], "before": before["value"]}


class Named(Backwards):
    """The same under the ids of the samples."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {**self.samples[len(self) - 1 - number], **super().__getitem__(number)}


def loaders(folder: Path, make: Any, world_size: int = 1) -> list[Loaders]:
    """Those of every rank."""
    reading = Reading(own=OwnDataset("my.Own", make))
    keys = {"batch": BATCH, "seed": 3, "drop_last": False, "reading": reading}
    return [Loaders(each) for each in settings_of_ranks(folder, world_size, **keys)]


def test_items_are_what_the_class_makes_of_any_sample(folder):
    """The number of an item is that of the sample at its place, unless the class tells."""
    (mine,) = loaders(folder, Backwards)
    for batch in mine.train:
        assert torch.equal(batch["value"], NUM - 1 - batch["sample_id"])
        assert torch.equal(batch["before"], (batch["value"] - 1) % NUM)
    (named,) = loaders(folder, Named)
    for batch in named.train:
        assert torch.equal(batch["sample_id"], batch["value"])


def test_validation_takes_each_item_in_order(folder):
    (rank,) = loaders(folder, Backwards)
    ids, values = (list(chain(*(b[f].tolist() for b in rank.validation()))) for f in
                   ("sample_id", "value"))  # fmt: skip
    assert ids == values[::-1] == list(range(NUM, NUM + VAL))


class Broken(Backwards):
    def __getitem__(self, number: int) -> Any:
        return [number] if number == 4 else {}["label"]


class Sizeless(Backwards):
    def __len__(self) -> int:
        raise ValueError("unknown")


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (Broken, UserCodeError, r"my.Own.__getitem__ raised (KeyError: 'label'|TypeError: it ret)"),
        (Sizeless, UserCodeError, "my.Own.__len__ raised ValueError: unknown"),
        (lambda samples: samples.nothing, UserCodeError, "my.Own raised AttributeError"),
        (lambda _: [], DataError, "my.Own has no samples of split 'train'"),
    ],
)
def test_faults_are_named(folder, make, error, told):
    with pytest.raises(error, match=told) as caught:
        list(loaders(folder, make)[0].train)
    assert "data.dataset names a class" in caught.value.hint


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"data": {"sampling": "balanced"}}, "goes with sampling: uniform"),
        ({"data": {"shuffle_window": 2}}, "without shuffle_window"),
        ({"stage": {"overlap": True}}, "set stage.overlap and"),
        ({"stage": {"partial": True}}, "and stage.partial"),
    ],
)
def test_what_rests_on_shards_is_refused(keys, told):
    own = {"dataset": {"_target_": "my.Own"}, **keys.pop("data", {})}
    content = {"name": "r", "dataset": {"name": "d", "path": "p"}, "model": {"_target_": "m.M"}}
    with pytest.raises(RecipeError, match=told):
        parse(Recipe, {**content, "data": own, **keys}, "test")
