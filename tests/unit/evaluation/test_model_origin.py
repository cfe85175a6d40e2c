"""What the report tells of where a model comes from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.evaluation.evaluation_plan import Inputs, evaluated_step
from headrace.evaluation.model_origin import changes_tables, chosen, provenance_table
from headrace.files.atomic import write_json, write_record
from headrace.files.layout import RunFolder
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.load import load_recipe
from headrace.steps.history import History, HistoryRow

VALUES = {10: 0.5, 20: 0.9, 30: 0.7}
ROWS = tuple(
    HistoryRow(at=0, launch=1, epoch=step // 10 - 1, step=step, metrics={"val/acc": value})
    for step, value in VALUES.items()
)
STARTS = [
    HistoryRow(at=0, launch=launch, starts=True, epoch=0, step=step)
    for launch, step in ((1, 0), (2, 30))
]
HISTORY = History((STARTS[0], *ROWS, STARTS[1]))
MONITOR = ("trainer.monitor=val/acc", "trainer.monitor_mode=max")


def make_context(folder: Path, *overrides: str) -> Any:
    return SimpleNamespace(
        recipe=load_recipe("digits", overrides),
        site=SimpleNamespace(name="laptop"),
        spec=SimpleNamespace(run_id="digits-1"),
        run_folder=RunFolder(folder),
    )


def inputs(name: str, wanted: Any = "last") -> Inputs:
    return Inputs("dataset", Path("checkpoints") / name, EvaluateSpec(checkpoint=wanted))


@pytest.mark.parametrize(
    ("name", "wanted", "overrides", "told"),
    [
        (
            "best-000000020.ckpt",
            "best",
            MONITOR,
            "evaluate.checkpoint is best; step 20 in epoch 2; val/acc 0.9; "
            "best of 3 validations (max): 0.9 at step 20",
        ),
        (
            "final.ckpt",
            "last",
            MONITOR,
            "evaluate.checkpoint is last; step 30 in epoch 3; val/acc 0.7; "
            "best of 3 validations (max): 0.9 at step 20",
        ),
        ("step-000000025.ckpt", 25, (), "evaluate.checkpoint is 25; step 25 in epoch 2"),
        ("mine.ckpt", "last", (), "evaluate.checkpoint is last"),
    ],
)
def test_it_tells_which_checkpoint_and_why(
    tmp_path: Path, name: str, wanted: Any, overrides: tuple[str, ...], told: str
) -> None:
    assert chosen(make_context(tmp_path, *overrides), inputs(name, wanted), HISTORY) == told


def test_the_last_checkpoint_of_an_unknown_training_has_no_step() -> None:
    assert evaluated_step(Path("final.ckpt"), History(())) is None
    assert evaluated_step(Path("final.ckpt"), HISTORY) == 30


def test_it_tells_how_to_run_it_again_without_secrets(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    request = {
        "recipe": "my recipe.yaml",
        "site": "slurm-dev",
        "overrides": ["seed=1", "dataset.source=https://me:secret@127.0.0.1/a b"],
    }
    write_json(context.run_folder.request, request)
    rows = dict(provenance_table(context, inputs("final.ckpt"), "f00", 7, HISTORY).rows)
    assert rows["Run it again"] == (
        "headrace run 'my recipe.yaml' --site slurm-dev seed=1 "
        "'dataset.source=https://***@127.0.0.1/a b'"
    )
    assert rows["Training went on from steps"] == "30"
    nobody_asked = make_context(tmp_path / "other")
    table = provenance_table(nobody_asked, inputs("final.ckpt"), "f00", 7, History(()))
    assert {"Run it again", "Training went on from steps"}.isdisjoint(dict(table.rows))


def test_a_fine_tuned_model_is_compared_with_the_run_that_it_began_with(tmp_path: Path) -> None:
    before = RunFolder(tmp_path / "digits-0")
    write_record(before.recipe, load_recipe("digits"))
    start = f"train.init_from={before.checkpoints / 'final.ckpt'}"
    context = make_context(tmp_path / "digits-1", start, "seed=8")
    change = {"key": "seed", "before": "7", "after": "8"}
    write_json(context.run_folder.provenance, {"changes": [change]})
    file, parent = changes_tables(context)
    assert file.rows == [("seed", "7", "8")]
    assert "digits-0" in parent.title
    assert [row[0] for row in parent.rows] == ["seed", "train.init_from"]
    assert changes_tables(make_context(tmp_path / "digits-2")) == ()
