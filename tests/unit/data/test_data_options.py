"""What `data` of a recipe asks for reaches the batches, through the real loader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.dataset import Reading, reading_of
from headrace.data.instantiate import Allowed
from headrace.data.loaders import DataSettings
from headrace.data.module import HeadraceDataModule
from headrace.errors import DataError, StepError, UserCodeError, UserError
from headrace.files.manifest import FieldInfo
from headrace.recipe.base import Target
from headrace.recipe.recipe import DataSpec
from headrace_bench.shards import ShardWriter
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
    return [
        HeadraceDataModule(
            DataSettings(
                folder=folder,
                spec=DataSpec(global_batch_size=BATCH, **data),
                seed=SEED,
                rank=rank,
                world_size=world_size,
                reading=reading or Reading(pad=data.get("pad")),
            )
        )
        for rank in range(world_size)
    ]


def epoch_of(ranks: list[HeadraceDataModule], epoch: int) -> Iterator[list[int]]:
    """The samples of each global batch, from the position of the ranks on."""
    for module in ranks:
        module.train_dataloader().set_epoch(epoch)
    for batches in zip(*(module.train_dataloader() for module in ranks), strict=True):
        yield [sample for batch in batches for sample in batch["sample_id"].tolist()]


KINDS = (
    {},
    {"shuffle": False},
    {"shuffle_window": 1},
    {"shuffle_window": 3},
    {"sampling": "balanced"},
    {"sampling": "weight", "samples_per_epoch": 31},
)


@settings(deadline=None, max_examples=12)
@given(
    kind=st.sampled_from(KINDS),
    drop_last=st.booleans(),
    prefetch=st.integers(0, 2),
    before=st.sampled_from(WORLD_SIZES),
    after=st.sampled_from(WORLD_SIZES),
    stop=st.integers(0, 4),
)
def test_a_training_goes_on_at_its_position(folder, kind, drop_last, prefetch, before, after, stop):
    """Pains 30: any order, world sizes, break point."""
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


@settings(deadline=None, max_examples=15)
@given(kind=st.sampled_from(KINDS), world_size=st.sampled_from(WORLD_SIZES))
def test_validation_has_each_sample_once_whatever_the_training(folder, kind, world_size):
    """Neither repeated nor filled up, on equally many batches."""
    ranks = [list(module.val_dataloader()) for module in modules(folder, world_size, **kind)]
    assert len({len(batches) for batches in ranks}) == 1
    found = [i for batches in ranks for batch in batches for i in batch["sample_id"].tolist()]
    assert sorted(found) == list(range(TRAIN, TRAIN + VAL))


def test_draws_by_class_and_by_weight(folder):
    (balanced,) = modules(folder, sampling="balanced", samples_per_epoch=1200)
    drawn = Counter(i % 10 == 0 for batch in epoch_of([balanced], 0) for i in batch)
    assert drawn.total() == 1200
    assert 540 < drawn[True] < 660
    (weighted,) = modules(folder, sampling="weight", samples_per_epoch=240)
    assert {i for batch in epoch_of([weighted], 0) for i in batch} == {0, 1, 2, 3}
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


def jitter(sample, generator=None):
    """Random in training only; makes one shape of what varies."""
    noise = torch.rand((), generator=generator) if generator else torch.zeros(())
    return {**sample, "length": sample["length"][:1], "noise": noise, "text": len(sample["words"])}


def test_sample_transforms_depend_on_the_place_only(folder):
    """The same noise for a place in the global order, whatever the world size."""
    found = []
    for world_size in (1, 2, 3):
        ranks = modules(folder, world_size, reading=Reading(transforms=(jitter,)))
        batches = [next(iter(module.train_dataloader())) for module in ranks]
        found.append({name: torch.cat([b[name] for b in batches]) for name in ("length", "noise")})
        assert batches[0]["text"].tolist() == [len(words) for words in batches[0]["words"]]
    assert found[0]["length"].shape == (BATCH, 1)
    assert len(set(found[0]["noise"].tolist())) == BATCH
    assert all(torch.equal(each["noise"], found[0]["noise"]) for each in found)
    (module,) = modules(folder, reading=Reading(transforms=(jitter,)))
    list(module.train_dataloader())
    module.train_dataloader().set_epoch(1)
    assert not torch.equal(next(iter(module.train_dataloader()))["noise"], found[0]["noise"])
    assert next(iter(module.val_dataloader()))["noise"].count_nonzero() == 0


def test_faults_of_sample_transforms_are_named(folder):
    def fails(sample):
        return sample["wrods"]

    def nothing(sample):
        return None

    def some(sample):
        return {**sample, "extra": 1} if sample["label"] else sample

    for transform, pad, error, text in (
        (fails, 0, UserCodeError, "fails raised KeyError: 'wrods'"),
        (nothing, 0, UserCodeError, "returned a NoneType"),
        (some, 0, DataError, "differ in fields"),
        (dict, None, DataError, "Field 'length' of one batch holds float32"),
    ):
        reading = Reading(transforms=(transform,), pad=pad)
        (module,) = modules(folder, shuffle=False, reading=reading)
        with pytest.raises(error, match=text):
            list(module.train_dataloader())


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


def test_batches_of_ones_own_keep_order_and_position(folder):
    """Exactly once over ranks, and on from the same sample with another number of them."""
    pairs = Reading(collate=Pairs())
    plain = list(epoch_of(modules(folder, 1), 1))
    assert list(epoch_of(modules(folder, 3, pairs), 1)) == plain
    ranks = modules(folder, 2, pairs)
    assert list(islice(epoch_of(ranks, 1), 2)) == plain[:2]
    later = modules(folder, 3, pairs)
    for module in later:
        module.load_state_dict(ranks[0].state_dict())
    assert list(epoch_of(later, 1)) == plain[2:]
    batch = next(iter(modules(folder, 1, pairs)[0].train_dataloader()))
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
