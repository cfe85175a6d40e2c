"""Curves of runs and of trials by their names, and in what some of these differ."""

from __future__ import annotations

import pytest

from headrace.errors import UnknownNameError
from headrace.files.atomic import write_json
from headrace.files.layout import RunFolder
from headrace.runs.code_state import UNKNOWN
from headrace.status.run_page import compare_page, curves_page
from headrace.steps.history import HistoryRow, training_file
from support.runs import make_run
from support.suite_journal import make_suite


def _train(run: RunFolder, loss: float) -> None:
    training_file(run).parent.mkdir(parents=True)
    row = HistoryRow(at=1.0, launch=1, epoch=0, step=5, loss=loss)
    training_file(run).write_text(f"{row.model_dump_json()}\n")


def test_curves_of_a_run_and_a_trial_over_each_other():
    run, suite = make_run().folder, make_suite().folder
    _train(run, 1.0)
    _train(suite.trial(3), 0.5)
    names = [run.run_id, f"{suite.run_id}:3", f"{suite.run_id}:4"]
    told = curves_page(names).runs
    assert [each.run_id for each in told] == names
    assert [[series.y for series in each.series] for each in told] == [[(1.0,)], [(0.5,)], []]
    with pytest.raises(UnknownNameError):
        curves_page([f"{run.run_id}x:3"])


def test_what_three_runs_differ_in():
    """What is the same in all is left out."""
    words = (["trainer.max_epochs=1"], ["trainer.max_epochs=2", "seed=4"], ["seed=4"])
    runs = [make_run(overrides=tuple(each)) for each in words]
    told = compare_page([run.run_id for run in runs])
    assert told.names == tuple(run.run_id for run in runs)
    usual = runs[2].recipe.trainer.max_epochs
    assert [(row.part, row.key, row.values) for row in told.rows] == [
        ("recipe", "seed", (str(runs[0].recipe.seed), "4", "4")),
        ("recipe", "trainer.max_epochs", ("1", "2", str(usual))),
    ]


def test_a_commit_that_one_run_does_not_know_is_no_difference():
    runs = [make_run().folder for _ in range(3)]
    for run, commit in zip(runs, ("a", "b", ""), strict=True):
        git = {"commit": commit, "dirty": False} if commit else None
        write_json(run.provenance, {"git": git})
    names = [run.run_id for run in runs]
    (row,) = compare_page(names).rows
    assert (row.part, row.key, row.values) == ("code", "commit", ("a", "b", UNKNOWN))
    assert compare_page(names[1:]).rows == ()
