"""Transforms, random numbers by position, and batches of samples that differ in shape."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from headrace.data.batch_form import transformed
from headrace.data.instantiate import Allowed, instantiate_all
from headrace.data.sampling import position_seed, seed_at
from headrace.data.transforms import (
    AddNoise,
    ChannelsFirst,
    Normalize,
    OnField,
    ScaleToUnit,
    collate,
    varies,
)
from headrace.errors import DataError
from headrace.files.manifest import FieldInfo
from headrace.recipe.recipe import DataSpec


def batch(*shape: int) -> dict[str, torch.Tensor]:
    return {"image": torch.full(shape, 51, dtype=torch.uint8), "label": torch.zeros(shape[0])}


def test_scale_to_unit():
    source = batch(2, 3, 3)
    scaled = ScaleToUnit(maximum=255)(source)
    assert scaled["image"].dtype == torch.float32
    assert torch.allclose(scaled["image"], torch.tensor(0.2))
    assert source["image"].dtype == torch.uint8
    values = {"image": torch.ones(1)}
    assert ScaleToUnit(maximum=2)(values)["image"].item() == 0.5
    assert values["image"].item() == 1


def test_normalize_one_or_one_a_channel():
    assert torch.equal(Normalize(50, 2)(batch(1, 2, 2))["image"], torch.full((1, 2, 2), 0.5))
    image = Normalize([51, 50, 49], [1, 1, 2])(batch(1, 2, 2, 3))["image"]
    assert image[0, 0, 0].tolist() == [0, 1, 1]


def test_channels_first():
    assert ChannelsFirst()(batch(4, 8, 8))["image"].shape == (4, 1, 8, 8)
    assert ChannelsFirst()(batch(4, 8, 6, 3))["image"].shape == (4, 3, 8, 6)


def test_transforms_are_applied_in_order():
    image = transformed(batch(1, 1, 1), [ScaleToUnit(), Normalize(0.2, 1)])["image"]
    assert image.item() == pytest.approx(0, abs=1e-6)


def test_an_unknown_field_names_the_nearest():
    with pytest.raises(DataError, match="Did you mean 'image'"):
        ScaleToUnit(field="imge")(batch(1, 1, 1))


def test_random_numbers_depend_on_the_place_only():
    def draw(*place: object) -> tuple[float, float, float]:
        seed_at(*place)
        return random.random(), np.random.rand(), torch.rand(1).item()

    assert draw(1, 2, 3, 0, "step") == draw(1, 2, 3, 0, "step")
    torch.manual_seed(position_seed(1, 2, 3, 0, "step"))
    wanted = torch.rand(1).item()
    assert draw(1, 2, 3, 0, "step")[2] == wanted
    places = [(1, 2, 3, 0, "step"), (1, 2, 3, 1, "step"), (1, 2, 4, 0, "step"), (1, 2, 3, 0, "x")]
    assert len({position_seed(*place) for place in places}) == 4
    for drawn in zip(*(draw(*place) for place in places), strict=True):
        assert len(set(drawn)) == 4


def test_noise_is_drawn_from_the_seeded_generator():
    source = {"image": torch.zeros(2, 2)}
    seed_at(0, 0, 0, 0, "augment")
    first = AddNoise(0.5)(source)["image"]
    seed_at(0, 0, 0, 0, "augment")
    assert torch.equal(AddNoise(0.5)(source)["image"], first)
    assert first.abs().sum() > 0


class Turns:
    """Turns pictures by a random number of quarters, one for all it gets, as torchvision does."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(values.shape))
        return torch.rot90(values, int(torch.randint(4, ())), (-2, -1))


@pytest.mark.parametrize("whole", [False, True])
def test_a_callable_of_any_library_changes_a_field(whole):
    """Each sample by its own random numbers; they are those of the place in training."""
    source = batch(64, 3, 4, 4)
    source["image"] = torch.arange(64 * 48).view(64, 3, 4, 4)
    changed = OnField(turns := Turns(), whole=whole)
    seed_at(1, 0, 2, 0, "augment")
    image = changed(source)["image"]
    assert turns.shapes == ([(64, 3, 4, 4)] if whole else [(3, 4, 4)] * 64)
    quarters = [torch.rot90(source["image"], turn, (-2, -1)) for turn in range(4)]
    alike = torch.stack([(each == image).flatten(1).all(1) for each in quarters]).sum(1)
    assert alike.sum() == 64
    assert (alike > 0).sum() == (1 if whole else 4)
    seed_at(1, 0, 2, 0, "augment")
    assert torch.equal(changed(source)["image"], image)


def test_a_callable_is_named_in_a_recipe():
    listed = ("headrace.data.transforms", "torch.nn.Dropout")
    inner = {"_target_": "torch.nn.Dropout", "p": 0.5}
    outer = {"_target_": "headrace.data.transforms.OnField", "transform": inner, "field": "label"}
    spec = DataSpec.model_validate({"augment": [outer]})
    made = instantiate_all(spec.augment, Allowed(listed), "data.augment")
    changed = transformed({"label": torch.ones(100)}, made)["label"]
    assert set(changed.tolist()) == {0.0, 2.0}


def test_a_field_that_is_a_list_is_refused_with_what_to_do():
    batch = {"image": [torch.zeros(2), torch.zeros(3)]}
    with pytest.raises(DataError, match=r"'image', whose samples differ in shape(.|\n)*data\.pad"):
        ScaleToUnit()(batch)


def names() -> list[str]:
    return ["a", "b", "c"]


def test_which_fields_vary():
    ragged = {"name": "x", "dtype": "uint8", "layout": "ragged"}
    assert varies(FieldInfo(**ragged))
    assert varies(FieldInfo(**ragged, encoding="text"))
    assert not varies(FieldInfo(**ragged, encoding="png"))
    assert not varies(FieldInfo(name="x", dtype="uint8", layout="fixed"))


def test_arrays_of_varying_length_are_filled_up():
    items = [np.full(size, size, dtype=np.float32) for size in (2, 0, 3)]
    filled = collate("x", items, names, pad=-1.0)
    assert filled["x"].tolist() == [[2, 2, -1], [-1, -1, -1], [3, 3, 3]]
    assert filled["x"].dtype == torch.float32
    assert filled["x_shape"].tolist() == [[2], [0], [3]]


def test_every_axis_is_filled_up():
    items = [np.ones((1, 3), dtype=np.int64), np.ones((2, 1), dtype=np.int64)]
    filled = collate("x", items, names, pad=0)
    assert filled["x"].tolist() == [[[1, 1, 1], [0, 0, 0]], [[1, 0, 0], [1, 0, 0]]]
    assert filled["x_shape"].tolist() == [[1, 3], [2, 1]]


def test_others_are_stacked_or_refused():
    whole = collate("x", [np.arange(2), np.arange(2)], names, pad=None)
    assert whole["x"].tolist() == [[0, 1], [0, 1]]
    assert collate("x", [1, 2], names, pad=None)["x"].tolist() == [1, 2]
    assert collate("x", ["one", "two"], names, pad=0) == {"x": ["one", "two"]}
    with pytest.raises(DataError, match=r"int64 \(2,\) \(a\) and int64 \(3,\) \(b\)"):
        collate("x", [np.arange(2), np.arange(3)], names, pad=None)
    with pytest.raises(DataError, match=r"\(2,\) \(a\) and int64 \(1, 1\) \(c\)"):
        collate("x", [np.arange(2)] * 2 + [np.ones((1, 1), np.int64)], names, pad=0)
