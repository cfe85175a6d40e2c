"""A `Dataset` of the user's over a split: order, ids, positions, faults."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.data.dataset import OwnDataset, Reading
from headrace.data.loaders import DataSettings, Loaders
from headrace.errors import DataError, RecipeError, UserCodeError
from headrace.recipe.load import parse
from headrace.recipe.recipe import DataSpec, Recipe
from support.shards import write_dataset

NUM, VAL, BATCH = 23, 5, 6
WORLD_SIZES = (1, 2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Samples that are their number."""
    folder = tmp_path_factory.mktemp("own") / "dataset"
    values = {"value": np.arange(NUM + VAL, dtype=np.int64)}
    write_dataset(folder, values, splits={"train": NUM, "val": VAL}, shard_samples=5)
    return folder


class Backwards:
    """Each sample with the one before it, last one first; `times` each."""

    def __init__(self, samples: Any, times: int = 1) -> None:
        self.samples, self.times = samples, times

    def __len__(self) -> int:
        return len(self.samples) * self.times

    def __getitem__(self, number: int) -> dict[str, Any]:
        place = len(self.samples) - 1 - number // self.times
        sample, before = self.samples[place], self.samples[place - 1]
        return {"value": sample["value"], "before": before["value"]}


class Named(Backwards):
    """The same under the ids of the samples."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {**self.samples[len(self) - 1 - number], **super().__getitem__(number)}


def loaders(folder: Path, make: Any, world_size: int = 1, **data: Any) -> list[Loaders]:
    """Those of every rank."""
    told = {"global_batch_size": BATCH, "drop_last": False, **data}
    spec = DataSpec.model_validate({**told, "dataset": {"_target_": "my.Own"}})
    return [
        Loaders(
            DataSettings(
                folder=folder,
                spec=spec,
                seed=3,
                rank=rank,
                world_size=world_size,
                reading=Reading(own=OwnDataset("my.Own", make)),
            )
        )
        for rank in range(world_size)
    ]


def epoch_of(ranks: list[Loaders], field: str = "sample_id") -> list[list[int]]:
    """A field of each global batch, from the position of the ranks on."""
    steps = zip(*(each.train for each in ranks), strict=True)
    return [[n for batch in step for n in batch[field].tolist()] for step in steps]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_each_item_comes_once_over_the_ranks_in_one_order(folder, world_size):
    """24 and 46 items in batches of six; the last one is cut to what ranks can share."""
    one = epoch_of(loaders(folder, Backwards))
    many = epoch_of(loaders(folder, Backwards, world_size))
    assert many[:-1] == one[:-1]
    seen = list(chain(*many))
    assert len(seen) == len(set(seen)) == NUM - NUM % world_size
    assert one != epoch_of(loaders(folder, Backwards, shuffle=False))
    twice = epoch_of(loaders(folder, lambda samples: Backwards(samples, 2), world_size))
    assert set(chain(*twice)) <= set(range(2 * NUM))
    assert len(list(chain(*twice))) == len(set(chain(*twice))) >= 2 * NUM - 1


def test_a_training_goes_on_at_its_item_with_other_ranks(folder):
    whole = epoch_of(loaders(folder, Backwards))
    first = loaders(folder, Backwards, 2)
    list(islice(zip(*(each.train for each in first), strict=True), 2))
    later = loaders(folder, Backwards, 3)
    for each in later:
        each.train.load_state_dict(first[0].train.state_dict())
    assert epoch_of(later)[:-1] == whole[2:-1]


def test_items_are_what_the_class_makes_of_any_sample(folder):
    """The number of an item is that of the sample at its place, unless the class tells."""
    (mine,) = loaders(folder, Backwards)
    for batch in mine.train:
        assert torch.equal(batch["value"], NUM - 1 - batch["sample_id"])
        assert torch.equal(batch["before"], (batch["value"] - 1) % NUM)
    (named,) = loaders(folder, Named)
    for batch in named.train:
        assert torch.equal(batch["sample_id"], batch["value"])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_validation_takes_each_item_once(folder, world_size):
    ranks = loaders(folder, Backwards, world_size)
    batches = [batch for each in ranks for batch in each.validation()]
    ids, values = (list(chain(*(b[f].tolist() for b in batches))) for f in ("sample_id", "value"))
    assert sorted(ids) == sorted(values) == list(range(NUM, NUM + VAL))
    assert ids == values[::-1] if world_size == 1 else True


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
        epoch_of(loaders(folder, make))
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
