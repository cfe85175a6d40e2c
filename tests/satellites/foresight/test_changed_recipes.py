"""Recipes whose keys differ from those of earlier runs: a forecast compares the keys both have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from headrace.recipe.load import load_recipe, load_site
from headrace.runs.prediction import Prediction
from headrace_foresight.prediction import predict
from support.command_line import headrace
from support.past_runs import past_run

_DATASET = "data.dataset={_target_: free.Wrapped, width: 2}"

CHANGES = {
    "a key is added": ((), ("model.dropout=0.1",)),
    "a key is removed": (("model.dropout=0.1",), ()),
    "another key": (("model.dropout=0.1",), ("model.width=8",)),
    "null becomes a mapping": ((), (_DATASET,)),
    "a mapping becomes null": ((_DATASET,), ()),
    "a list becomes a mapping": (("model.sizes=[1,2]",), ("model.sizes={first: 1, second: 2}",)),
    "a mapping becomes a list": (("model.sizes={first: 1, second: 2}",), ("model.sizes=[1,2]",)),
    "a number becomes a text": (("model.width=8",), ("model.width=wide",)),
    "a text becomes a number": (("model.width=wide",), ("model.width=8",)),
    "a number becomes a mapping": (("model.width=8",), ("model.width={first: 8}",)),
    "true becomes a number": (("model.width=true",), ("model.width=1",)),
    "a number becomes null": (("model.width=8",), ("model.width=null",)),
    "a number becomes NaN": (("model.width=8",), ("model.width=.nan",)),
    "an infinite number": (("model.width=.inf",), ("model.width=8",)),
    "a number beyond int64": (("model.width=8",), (f"model.width={2**120}",)),
}


@pytest.fixture(autouse=True)
def _recipe(headrace_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipe `own.yaml` of a relative source, whose model and dataset take any arguments."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "free.py").write_text(
        "from headrace.examples.digits_model import DigitClassifier\n\n\n"
        "class Model(DigitClassifier):\n"
        "    def __init__(self, **arguments): super().__init__()\n\n\n"
        "class Wrapped:\n"
        "    def __init__(self, dataset, **arguments): self.dataset = dataset\n"
    )
    splits = {"train": 0.6, "val": 0.2, "test": 0.2}
    recipe = {
        "name": "own",
        "code": ["code"],
        "dataset": {"name": "own", "source": "samples", "splits": splits},
        "pack": {"target": "packed"},
        "model": {"_target_": "free.Model"},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(recipe))


def _forecast(*overrides: str) -> Prediction:
    return predict(load_recipe("own.yaml", overrides), load_site("laptop"), "train")


@pytest.mark.parametrize(("before", "now"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("num_runs", [1, 3])
def test_a_recipe_with_other_keys_has_a_forecast(
    before: tuple[str, ...], now: tuple[str, ...], num_runs: int
):
    for _ in range(num_runs):
        past_run(4, *before, recipe="own.yaml")
    found = _forecast("trainer.max_epochs=4", *now)
    assert found.unknown == ()
    assert found.seconds == pytest.approx(47.0, rel=0.5)


def test_runs_of_which_some_have_a_key_tell_of_recipes_with_and_without():
    for overrides in ((), ("model.dropout=0.1",), ("model.dropout=some",), ()):
        past_run(4, *overrides, recipe="own.yaml")
    for now in ((), ("model.dropout=0.2",), ("model.width=3",)):
        assert _forecast(*now).unknown == ()


def test_a_relative_source_is_compared_as_the_run_has_resolved_it():
    past_run(4, recipe="own.yaml")
    assert "by 1 earlier run" in headrace("plan", "own.yaml").stdout
    past_run(4, recipe="own.yaml", kind="pack")
    assert _forecast().unknown == ()
