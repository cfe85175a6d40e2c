"""What a step will take, from runs that were alike."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.control.walltime.estimate import Past, Work, expected
from headrace.recipe.load import load_recipe
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role

GANG = Role(backend="slurm", kind="gang", nodes=2, ranks_per_node=2)
POOL = Role(backend="slurm", nodes=4, threads_per_node=2)
EPOCHS = 4


def recipe(*overrides: str) -> Recipe:
    return load_recipe("digits", (f"trainer.max_epochs={EPOCHS}", *overrides))


def past(kind: str = "train", *overrides: str, **changes: Any) -> Past:
    """A run of four epochs of ten steps, in 100 s, on four ranks."""
    trained = {"steps": 40.0, "total_steps": 40.0} if kind == "train" else {}
    values: dict[str, Any] = {"kind": kind, "slots": 4, "seconds": 100.0, **trained, **changes}
    return Past(recipe=recipe(*overrides), **values)


def seconds(
    kind: str, *pasts: Past, overrides: tuple[str, ...] = (), role: Role = GANG, **work: float
) -> float | None:
    return expected(kind, kind, Work(recipe=recipe(*overrides), role=role, **work), pasts).seconds


@pytest.mark.parametrize(
    ("overrides", "work", "wanted"),
    [
        ((), {}, 100.0),
        (("seed=5",), {}, 100.0),
        (("model.learning_rate=0.1",), {}, 100.0),
        (("trainer.max_epochs=8",), {}, 200.0),
        (("trainer.max_epochs=1",), {}, 25.0),
        (("data.global_batch_size=128",), {}, 100.0),  # as many samples
        (("trainer.max_steps=20",), {}, 50.0),
        (("trainer.max_steps=4000",), {}, 100.0),
        ((), {"kept_steps": 30.0}, 25.0),
        ((), {"kept_steps": 50.0}, 0.0),
        (("trainer.max_epochs=8",), {"kept_steps": 30.0, "total_steps": 50.0}, 50.0),
        (("model._target_=torch.nn.Linear",), {}, None),
        (("dataset.name=other",), {}, None),
    ],
)
def test_training_is_scaled_to_what_is_left_to_do(
    overrides: tuple[str, ...], work: dict[str, float], wanted: float | None
) -> None:
    assert seconds("train", past(), overrides=overrides, **work) == wanted


def test_samples_of_an_epoch_are_taken_from_the_recipe_where_it_says_them() -> None:
    batch = recipe().data.global_batch_size
    overrides = ("data.sampling=balanced", f"data.samples_per_epoch={5 * batch}")
    assert seconds("train", past(), overrides=overrides) == 50.0
    # a run that went over a part of the split does not tell how large the split is
    part = past("train", *overrides)
    assert seconds("train", part) is None
    assert seconds("train", part, total_steps=80.0) == 200.0


def test_the_slowest_of_the_newest_three_counts() -> None:
    times = (50.0, 70.0, 60.0, 900.0)
    pasts = [past("stage", seconds=each) for each in times]
    assert seconds("stage", *pasts) == 70.0
    assert seconds("stage", *pasts[:1]) == 50.0
    assert seconds("stage") is None
    assert seconds("train", *pasts) is None


def test_fewer_ranks_take_longer_and_more_are_not_counted_on() -> None:
    assert seconds("train", past(slots=8)) == 200.0
    assert seconds("train", past(slots=2)) == 100.0
    assert seconds("pack", past("pack", slots=16), role=POOL) == 200.0
    script = ("model=null", "train.script=a.py", "evaluate=null")
    packed = past("pack", *script, slots=8)  # packing does not care for the model
    assert seconds("pack", packed, role=POOL) == 100.0


def test_a_script_takes_as_long_as_before() -> None:
    script = ("model=null", "train.script=a.py", "evaluate=null")
    before = past("train", *script, steps=0.0, total_steps=None)
    assert seconds("train", before, overrides=(*script, "trainer.max_epochs=9")) == 100.0
    assert seconds("train", before, overrides=(*script, "train.args=[--long]")) is None
    assert seconds("train", before) is None
