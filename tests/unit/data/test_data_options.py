"""What `data` of a recipe asks for reaches the batches, through the real loader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.dataset import OwnDataset, Reading, reading_of
from headrace.data.instantiate import Allowed
from headrace.data.module import HeadraceDataModule
from headrace.errors import DataError, StepError, UserCodeError, UserError
from headrace.files.manifest import FieldInfo
from headrace.recipe.base import Target
from headrace.recipe.recipe import DataSpec
from headrace_bench.shards import ShardWriter
from support.loaders import settings_of_ranks, steps_of
from support.shards import write_fields

TRAIN, VAL, SHARD, BATCH, SEED = 47, 10, 6, 12, 5
WORLD_SIZES = (1, 2, 3, 4, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Samples with a label, a weight, an array of varying length, and text."""
    folder = tmp_path_factory.mktemp("options") / "dataset"
    fields = (
        FieldInfo(name="length", dtype="float32", layout="ragged"),
        FieldInfo(name="words", dtype="uint8", layout="ragged", encoding="text"),
        FieldInfo(name="weight", dtype="float32", layout="fixed"),
        FieldInfo(name="label", dtype="int64", layout="fixed"),
    )
    write_fields(folder, fields, add, splits={"train": TRAIN, "val": VAL}, shard_samples=SHARD)
    return folder


def add(writer: ShardWriter, ids: np.ndarray) -> None:
    writer.add_ragged("length", [np.full(i % 4 + 1, i, np.float32).tobytes() for i in ids])
    writer.add_ragged("words", [f"sämple {i}".encode() for i in ids])
    writer.add_fixed("weight", (ids < 4).astype(np.float32))
    writer.add_fixed("label", (ids % 10 == 0).astype(np.int64))


def modules(
    folder: Path, world_size: int = 1, reading: Reading | None = None, **data: Any
) -> list[HeadraceDataModule]:
    """The module of every rank."""
    data["reading"] = reading or Reading(pad=data.get("pad"))
    ranks = settings_of_ranks(folder, world_size, batch=BATCH, seed=SEED, **data)
    return [HeadraceDataModule(each) for each in ranks]


def epoch_of(ranks: list[HeadraceDataModule], epoch: int) -> Iterator[list[tuple[int, float]]]:
    """The samples of each global batch and their noise, from the position of the ranks on."""
    for step in steps_of([each.train_dataloader() for each in ranks], epoch):
        yield [
            pair for batch in step
            for pair in zip(
                batch["sample_id"].tolist(),
                batch.get("noise", torch.zeros(len(batch["sample_id"]))).tolist(),
                strict=True,
            )
        ]  # fmt: skip


class Backwards:
    """Each sample with the one before it, last one first; `times` each."""

    def __init__(self, samples: Any, times: int = 1) -> None:
        self.samples, self.times = samples, times

    def __len__(self) -> int:
        return len(self.samples) * self.times

    def __getitem__(self, number: int) -> dict[str, Any]:
        place = len(self.samples) - 1 - number // self.times
        sample, before = self.samples[place], self.samples[place - 1]
        return {"value": sample["label"], "before": before["label"]}


def jitter(sample, generator=None):
    """Random in training only; makes one shape of what varies."""
    noise = torch.rand((), generator=generator) if generator else torch.zeros(())
    return {**sample, "length": sample["length"][:1], "noise": noise, "text": len(sample["words"])}


class Pairs:
    """Each sample with the one after it in the batch, as for two inputs."""

    def __call__(self, samples):
        turned = [*samples[1:], samples[0]]
        return {
            "first": [sample["length"] for sample in samples],
            "second": torch.stack([sample["length"].sum() for sample in turned]),
            "words": [sample["words"] for sample in samples],
            "sample_id": "not needed",
        }


OWN = Reading(own=OwnDataset("my.Own", Backwards))
TWICE = Reading(own=OwnDataset("my.Own", partial(Backwards, times=2)))
KINDS = (
    {},
    {"shuffle": False},
    {"shuffle_window": 1},
    {"shuffle_window": 3},
    {"sampling": "balanced"},
    {"sampling": "weight", "samples_per_epoch": 31},
    {"reading": Reading(transforms=(jitter,))},
    {"reading": Reading(collate=Pairs())},
    {"reading": OWN},
    {"reading": OWN, "shuffle": False},
    {"reading": TWICE},
)


@settings(deadline=None, max_examples=24)
@given(
    kind=st.sampled_from(KINDS),
    drop_last=st.booleans(),
    prefetch=st.integers(0, 2),
    before=st.sampled_from(WORLD_SIZES),
    after=st.sampled_from(WORLD_SIZES),
    stop=st.integers(0, 4),
)
def test_a_training_goes_on_at_its_position(folder, kind, drop_last, prefetch, before, after, stop):
    """Pains 30: any order, world sizes, break point; each item once, with the same noise."""
    options = {"drop_last": drop_last, "prefetch": prefetch, **kind}
    whole = list(epoch_of(modules(folder, **options), 1))
    first = modules(folder, before, **options)
    for module in first:
        module.train_dataloader().set_epoch(1)
    seen = list(islice(epoch_of(first, 1), stop))
    states = [module.state_dict() for module in first]
    assert states == states[:1] * before

    second = modules(folder, after, **options)
    for module in second:
        module.load_state_dict(states[0])
    seen += epoch_of(second, 1)
    full = [batch for batch in whole if len(batch) == BATCH]
    assert seen[: len(full)] == full
    left_out = len(list(chain(*whole))) - len(list(chain(*seen)))
    assert 0 <= left_out < max(before, after)
    for batch, expected in zip(seen[len(full) :], whole[len(full) :], strict=False):
        assert batch == expected[: len(batch)]
        assert len(batch) > len(expected) - max(before, after)
    assert [len(batch) for batch in epoch_of(second, 2)][:2] == [BATCH] * 2
    if "sampling" not in kind:
        items = [item for item, _ in chain(*whole)]
        num_items = TRAIN * (2 if kind.get("reading") is TWICE else 1)
        assert len(set(items)) == len(items) == num_items - drop_last * (num_items % BATCH)
        assert set(items) <= set(range(num_items))
        assert (items == sorted(items)) == (kind.get("shuffle") is False)


@settings(deadline=None, max_examples=20)
@given(kind=st.sampled_from(KINDS[:-1]), world_size=st.sampled_from(WORLD_SIZES))
def test_validation_has_each_sample_once_whatever_the_training(folder, kind, world_size):
    """Neither repeated nor filled up, on equally many batches."""
    ranks = [list(module.val_dataloader()) for module in modules(folder, world_size, **kind)]
    assert len({len(batches) for batches in ranks}) == 1
    found = [i for batches in ranks for batch in batches for i in batch["sample_id"].tolist()]
    assert sorted(found) == list(range(TRAIN, TRAIN + VAL))


def test_draws_by_class_and_by_weight(folder):
    (balanced,) = modules(folder, sampling="balanced", samples_per_epoch=1200)
    drawn = Counter(i % 10 == 0 for batch in epoch_of([balanced], 0) for i, _ in batch)
    assert drawn.total() == 1200
    assert 540 < drawn[True] < 660
    (weighted,) = modules(folder, sampling="weight", samples_per_epoch=240)
    assert {i for batch in epoch_of([weighted], 0) for i, _ in batch} == {0, 1, 2, 3}
    with pytest.raises(UserError, match="needs a field 'wieght'"):
        modules(folder, sampling="wieght")
    with pytest.raises(UserError, match="needs a field 'words'"):
        modules(folder, sampling="words")


def test_a_position_of_another_order_is_refused(folder):
    (module,) = modules(folder)
    next(epoch_of([module], 0))
    (other,) = modules(folder, shuffle_window=2)
    with pytest.raises(StepError, match=r"47 samples shuffled by seed 5; .* windows of 2 of 8"):
        other.load_state_dict(module.state_dict())


@pytest.mark.parametrize("pad", [None, -1.0])
def test_ragged_arrays_are_lists_or_filled_up(folder, pad):
    (module,) = modules(folder, pad=pad)
    for loader in (module.train_dataloader(), module.val_dataloader()):
        batch = next(iter(loader))
        ids = batch["sample_id"].tolist()
        assert batch["words"] == [f"sämple {i}" for i in ids]
        expected = [[float(i)] * (i % 4 + 1) for i in ids]
        if pad is None:
            assert [each.tolist() for each in batch["length"]] == expected
        else:
            assert batch["length"].shape == (len(ids), 4)
            assert batch["length_shape"].tolist() == [[len(each)] for each in expected]
            assert batch["length"].tolist() == [e + [-1] * (4 - len(e)) for e in expected]


def test_sample_transforms_draw_by_place_and_in_training_only(folder):
    (module,) = modules(folder, reading=Reading(transforms=(jitter,)))
    first, *_ = list(module.train_dataloader())
    assert first["text"].tolist() == [len(words) for words in first["words"]]
    assert first["length"].shape == (BATCH, 1)
    assert len(set(first["noise"].tolist())) == BATCH
    module.train_dataloader().set_epoch(1)
    assert not torch.equal(next(iter(module.train_dataloader()))["noise"], first["noise"])
    assert next(iter(module.val_dataloader()))["noise"].count_nonzero() == 0


def test_faults_of_sample_transforms_are_named(folder):
    def fails(sample):
        return sample["wrods"]

    def nothing(sample):
        return None

    def some(sample):
        return {**sample, "extra": 1} if sample["label"] else sample

    def all_but_the_first(sample):
        return {**sample, "extra": 1} if int(sample["sample_id"]) else sample

    for transform, pad, error, text in (
        (fails, 0, UserCodeError, "fails raised KeyError: 'wrods'"),
        (nothing, 0, UserCodeError, "returned a NoneType"),
        (some, 0, DataError, "differ in fields"),
        (all_but_the_first, 0, DataError, "only some have 'extra'"),
        (dict, None, DataError, "Field 'length' of one batch holds float32"),
    ):
        reading = Reading(transforms=(transform,), pad=pad)
        (module,) = modules(folder, shuffle=False, reading=reading)
        with pytest.raises(error, match=text):
            list(module.train_dataloader())


def test_batches_of_ones_own_are_what_collate_made(folder):
    (module,) = modules(folder, 1, Reading(collate=Pairs()))
    batch = next(iter(module.train_dataloader()))
    ids = batch["sample_id"].tolist()
    assert [int(each[0]) for each in batch["first"]] == ids
    assert batch["second"].tolist() == [i * (i % 4 + 1) for i in [*ids[1:], ids[0]]]
    assert batch["words"][0] == f"sämple {ids[0]}"


def test_faults_of_collate_are_named(folder):
    def broken(samples):
        raise ValueError(f"{len(samples)} are too many")

    def nothing(samples):
        samples.clear()

    for form, told in ((broken, "broken raised ValueError: 12 are"), (nothing, "returned None")):
        (module,) = modules(folder, 1, Reading(collate=form))
        with pytest.raises(UserCodeError, match=told) as caught:
            next(iter(module.train_dataloader()))
        assert "data.collate takes a list" in caught.value.hint


def test_reading_is_what_the_recipe_says():
    """One place for training and evaluation."""
    name = "headrace.data.transforms.ChannelsFirst"
    target = Target.model_validate({"_target_": name, "field": "x"})
    spec = DataSpec(pad=2.0, sample_transforms=(target,), collate=target)
    reading = reading_of(spec, Allowed(listed=("headrace.data.transforms",), code=()))
    assert reading.pad == 2.0
    assert [type(each).__name__ for each in reading.transforms] == ["ChannelsFirst"]
    assert type(reading.collate).__name__ == "ChannelsFirst"
    assert reading.is_special
    assert not reading_of(DataSpec(), Allowed(listed=(), code=())).is_special
