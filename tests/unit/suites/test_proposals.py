"""Trials of points that Optuna proposes, and what is left of them for the next driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.data.instantiate import Allowed
from headrace.files.atomic import write_text
from headrace.files.layout import RunFolder
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.recipe import Recipe
from headrace.steps.history import HistoryRow, training_file
from headrace.suites.records import Added, Entry
from headrace.suites.search import Search
from headrace.suites.suite_state import SuiteState
from support.suite_journal import ended, failed, started

SPACE = {"model.learning_rate": "interval(0.1, 0.9)"}


def _recipe(**suite: Any) -> Recipe:
    search = {"space": SPACE, "trials": 6, "sampler": "tpe", **suite.pop("search", {})}
    content = load_recipe("digits").model_dump(by_alias=True) | {
        "suite": {"search": search, "objectives": [{"metric": "loss"}], **suite}
    }
    return Recipe.model_validate(content)


class _Suite:
    """A suite without machines: what its driver would do, one entry after another."""

    def __init__(self, run: RunFolder, recipe: Recipe) -> None:
        allowed = Allowed.of(recipe, load_site("laptop"))
        self.source = Search(recipe, recipe.suite.search, allowed, run)
        self.suite_state = SuiteState(objectives=recipe.suite.objectives)
        self.source.watch(self.suite_state)
        self.entries: list[Entry] = []

    def note(self, *entries: Entry) -> None:
        for entry in entries:
            self.entries.append(entry)
            self.suite_state.take(entry)
            self.source.take(entry)

    def propose(self) -> list[dict[str, Any]]:
        trials = self.source.more(1)
        self.note(*(Added(trial=trial) for trial in trials))
        return [trial.values for trial in trials]

    def end(self, number: int, loss: float | None) -> None:
        over = failed(number) if loss is None else ended(number, loss)
        self.note(started(number), over)


def test_another_driver_proposes_what_this_one_would(tmp_path: Path) -> None:
    run, recipe = RunFolder(tmp_path), _recipe()
    first = _Suite(run, recipe)
    for number, loss in enumerate((0.3, None, 0.1), 1):
        first.propose()
        first.end(number, loss)
    first.propose()
    second = _Suite(run, recipe)
    second.note(*first.entries)
    assert second.source.total == first.source.total == 6
    for suite in (first, second):
        suite.end(4, 0.2)
    assert first.propose() == second.propose()
    assert first.propose() == second.propose()
    assert second.source.is_exhausted
    assert second.propose() == []


def test_a_point_counts_by_the_mean_of_its_seeds(tmp_path: Path) -> None:
    suite = _Suite(RunFolder(tmp_path), _recipe(seeds=[1, 2]))
    assert suite.source.total == 12
    one, two = suite.propose()
    assert one["seed"] != two["seed"]
    assert one["model.learning_rate"] == two["model.learning_rate"]
    suite.end(1, 0.2)
    study = suite.source.study
    assert study.trials[0].state.name == "RUNNING"
    suite.end(2, 0.4)
    assert round(study.trials[0].value, 6) == 0.3


def test_points_that_are_skipped_are_not_proposed_again(tmp_path: Path) -> None:
    run, recipe = RunFolder(tmp_path), _recipe(skip=["model.learning_rate > 0.5"])
    first = _Suite(run, recipe)
    kept = [first.propose() for _ in range(3)]
    assert all(values["model.learning_rate"] <= 0.5 for each in kept for values in each)
    assert first.source.num_proposed > len([each for each in kept if each])
    second = _Suite(run, recipe)
    second.note(*first.entries)
    assert second.source.num_proposed <= first.source.num_proposed
    assert first.propose() == second.propose()


def test_a_trial_that_promises_little_is_found_also_after_a_restart(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    recipe = _recipe(search={"pruner": "median", "trials": 10})
    first = _Suite(run, recipe)
    for number in range(1, 8):
        first.propose()
        _validated(run, number, [1.0, 0.5, 0.1] if number < 7 else [3.0, 3.0, 3.0])
        if number < 7:
            assert not first.source.should_prune(first.suite_state.rows[number])
            first.end(number, 0.1)
    second = _Suite(run, recipe)
    second.note(*first.entries)
    for suite in (first, second):
        assert suite.source.should_prune(suite.suite_state.rows[7])


def _validated(run: RunFolder, number: int, losses: list[float]) -> None:
    rows = [
        HistoryRow(at=step, launch=1, starts=step == 1, epoch=0, step=step, metrics={"loss": loss})
        for step, loss in enumerate(losses, 1)
    ]
    text = "".join(f"{row.model_dump_json()}\n" for row in rows)
    write_text(training_file(run.trial(number)), text)
