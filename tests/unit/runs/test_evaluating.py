"""Runs that evaluate other runs: which checkpoints, which dataset, when there are no more."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ManifestError, RecipeError, StepError, UnknownNameError
from headrace.execution.ticks import mark_enough
from headrace.files.layout import kept_name
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.recipe.load import load_recipe
from headrace.runs.lifecycle import finish_run
from headrace.runs.planned_steps import steps_of
from headrace.runs.resolve import of_run
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.status.run_details import run_details
from support.runs import ended_owner, lease_on_disk, make_run
from support.shards import write_dataset


def succeeded(run: Run, step: str, role: str, **outputs: object) -> None:
    lease_id = lease_on_disk(run, role)
    open_ledger().add_attempt(
        AttemptRecord(
            run_id=run.run_id, step=step, kind=step, attempt=1, key=f"{run.run_id}/{step}/1",
            lease_id=lease_id, state=StepState.SUCCEEDED, created_at=time.time(), outputs=outputs,
        )
    )  # fmt: skip


@pytest.fixture
def trained(tmp_path: Path) -> Run:
    """A run that trains, with two checkpoints; its raw samples are gone."""
    run = make_run(overrides=("dataset.source=.",))
    fields = {"image": np.zeros((20, 8, 8), np.uint8), "label": np.arange(20) % 10}
    classes = tuple(str(number) for number in range(10))
    write_dataset(tmp_path / "d", fields, splits={"train": 12, "test": 8}, classes=classes)
    succeeded(run, "pack", "cpu", dataset=str(tmp_path / "d"))
    run.folder.checkpoints.mkdir()
    return run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").mkdir()
    monkeypatch.chdir(tmp_path / "raw")


def test_code_that_the_evaluated_run_keeps_may_be_used(trained: Run):
    """Also where a site lists the folders of code: it allowed this one when that run began."""
    assert str(trained.folder.code) in evaluating(trained, watch=True).site.allowed_code


def evaluating(trained: Run, *overrides: str, watch: bool = False) -> Run:
    recipe = str(trained.folder.recipe)
    return make_run(
        recipe=recipe, kind="evaluate", of=trained.run_id, overrides=overrides, watch=watch
    )


def test_checkpoints_are_files_of_the_run_that_is_evaluated(trained: Run) -> None:
    files = [trained.folder.checkpoints / name for name in ("final.ckpt", kept_name(7))]
    recipe = load_recipe("digits", ["evaluate.also_checkpoints=[7,/x/y.ckpt]"])
    with pytest.raises(UnknownNameError, match="has no checkpoint 'last'"):
        of_run(recipe, trained.folder)
    for file in files:
        file.touch()
    found = of_run(recipe, trained.folder).evaluate
    assert found.checkpoints == (*map(str, files), "/x/y.ckpt")
    watched = of_run(recipe, trained.folder, watch=True).evaluate
    assert watched.checkpoints == ("last",)
    with pytest.raises(RecipeError, match="leaves evaluation out"):
        of_run(load_recipe("digits", ["evaluate=null"]), trained.folder)


def test_it_is_one_step_on_the_dataset_of_the_other_run(trained: Run) -> None:
    run = evaluating(trained, "train.role=cpu", "seed=3", watch=True)
    (step,) = steps_of(run.recipe, run.request.kind)
    assert (step.name, step.kind, step.role) == ("evaluate", "evaluate", "cpu")
    assert run.recipe.seed == 3
    asked = ("evaluate", trained.run_id, "train.role=cpu", "seed=3", "--site", "laptop", "--watch")
    assert run_details(run.run_id).asked == asked


def test_what_cannot_be_evaluated_is_told_before_anything_starts(trained: Run) -> None:
    with pytest.raises(ManifestError, match="has no split 'val'"):
        evaluating(trained, "evaluate.split=val", watch=True)
    with pytest.raises(RecipeError, match="names 'acc'"):
        evaluating(trained, "evaluate.min_metrics={acc: 1}", watch=True)
    other = make_run(overrides=("dataset.source=.",))
    with pytest.raises(StepError, match="has no packed dataset yet"):
        evaluating(other, watch=True)
    assert [row.run_id for row in open_ledger().runs()] == [other.run_id, trained.run_id]


def test_it_is_told_when_no_more_checkpoints_come(trained: Run) -> None:
    """Training is done, the run has ended, or nobody goes on with it; not once it is resumed."""
    run = evaluating(trained, watch=True)
    mark_enough(run)
    assert not run.folder.enough.exists()
    finish_run(trained, StepState.FAILED)
    mark_enough(run)
    assert run.folder.enough.exists()
    open_ledger().reopen_run(trained.run_id, trained.request.owner)
    mark_enough(run)
    assert not run.folder.enough.exists()
    succeeded(trained, "train", "gpu")
    mark_enough(run)
    assert run.folder.enough.exists()
    left = make_run(overrides=("dataset.source=.",), owner=ended_owner())
    succeeded(
        left, "pack", "cpu", dataset=open_ledger().attempts(trained.run_id)[0].outputs["dataset"]
    )
    run = evaluating(left, watch=True)
    mark_enough(run)
    assert run.folder.enough.exists()
