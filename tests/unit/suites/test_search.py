"""Points that Optuna proposes; a driver that was killed makes no difference."""

from __future__ import annotations

import errno
import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from headrace.data.instantiate import Allowed
from headrace.errors import RecipeError, TargetError
from headrace.files.atomic import write_text
from headrace.files.layout import RunFolder
from headrace.informing import inform
from headrace.recipe.load import load_recipe, load_site, source_of
from headrace.recipe.recipe import Recipe
from headrace.steps.history import History, HistoryRow, read_history, training_file
from headrace.suites import points
from headrace.suites.records import Added, Entry
from headrace.suites.search import Search
from headrace.suites.suite_state import SuiteState
from support.suite_journal import ended, failed, started

SPACE = {
    "model.x": "interval(-1, 1)",
    "model.lr": "tag(log, interval(1e-5, 1e-1))",
    "model.n": "int(interval(1, 8))",
    "model.step": "range(0, 1, step=0.1)",
    "model.kind": "a, b, null",
    "model.sizes": [[1, 2], {"a": True}, 1, 1.5, "1"],
}


OF_LOSS = ("trainer.monitor=val_loss",)


def recipe_of(sampler="tpe", pruner="none", *overrides: str, trials: int = 60):
    search = {"space": SPACE, "trials": trials, "sampler": sampler, "pruner": pruner}
    words = (f"suite.search={json.dumps(search)}", "trainer.monitor=val_loss", *overrides)
    return load_recipe("digits", words)


def search_of(recipe) -> Search:
    """A search whose trials have no folder."""
    return Search(recipe, recipe.suite.search, Allowed(()), RunFolder(Path("nowhere")))


def value_of(point) -> float:
    return point["model.x"] ** 2 + abs(math.log10(point["model.lr"]) + 3) + point["model.n"]


class Driven:
    """A search with workers that end in any order, and its journal."""

    def __init__(self, recipe, seed: int) -> None:
        self.recipe, self.random = recipe, random.Random(seed)
        self.search, self.journal = search_of(recipe), []
        self.running: dict[int, dict] = {}

    def turn(self) -> None:
        while len(self.running) < 3 and (proposed := self.search.propose()):
            number, point = proposed
            self.running[number] = point
            self.journal.append(("know", point))
        number = self.random.choice(list(self.running))
        point = self.running.pop(number)
        is_pruned = False
        for step in range(1, 5):
            value = value_of(point) / step
            self.journal.append(("report", number, step, value))
            is_pruned = self.search.report(number, step, value)
            if is_pruned:
                break
        values = None if number % 7 == 3 else [value_of(point)]
        self.journal.append(("tell", number, values, is_pruned))
        self.search.tell(number, values, pruned=is_pruned)

    def restored(self) -> Search:
        search = search_of(self.recipe)
        for what, *given in self.journal:
            if what == "know":
                search.know(*given)
            elif what == "report":
                search.report(*given)
            else:
                search.tell(*given[:2], pruned=given[2])
        return search


@pytest.mark.parametrize(
    ("sampler", "pruner", "turns"),
    [
        ("random", "hyperband", 30),
        ("tpe", "none", 30),
        ("tpe", "median", 30),
        ("tpe", "asha", 30),
        ("nsgaii", "none", 50),
        ("qmc", "none", 20),
        ("gp", "none", 12),
        ("cmaes", "none", 20),
    ],
)
def test_a_killed_driver_makes_no_difference(sampler, pruner, turns):
    driven = Driven(recipe_of(sampler, pruner), seed=1)
    again = Driven(recipe_of(sampler, pruner), seed=1)
    for turn in range(turns):
        driven.turn()
        if turn % 9 == 0:
            again.search = again.restored()
        again.turn()
    assert json.dumps(again.journal) == json.dumps(driven.journal)
    restored = driven.restored()
    assert restored.propose() == driven.search.propose()
    states = [trial.state for trial in driven.search.study.trials]
    assert (TrialState.PRUNED in states) == (pruner != "none")
    assert [trial.state for trial in restored.study.trials] == states


def test_points_lie_in_the_space_and_another_seed_gives_others():
    first, other = (search_of(recipe_of("random", "none", f"seed={n}")) for n in (1, 2))
    found = []
    while proposed := first.propose():
        found.append(proposed[1])
    assert len(found) == 60
    assert other.propose()[1] != found[0]
    assert all(point.keys() == SPACE.keys() for point in found)
    assert {point["model.n"] for point in found} == set(range(1, 9))
    assert {point["model.kind"] for point in found} == {"a", "b", None}
    assert all(type(point["model.n"]) is int for point in found)
    assert all(1e-5 <= point["model.lr"] <= 1e-1 for point in found)
    assert {json.dumps(point["model.sizes"]) for point in found} == {
        "[1, 2]", '{"a": true}', "1", "1.5", '"1"',
    }  # fmt: skip
    assert {round(point["model.step"], 6) for point in found} == {n / 10 for n in range(10)}


@pytest.mark.parametrize(
    "values", [None, [], [math.nan], [math.inf], ["0.5"], [True], [1.0, 2.0], [None]]
)
def test_an_objective_that_is_no_number_is_a_failed_proposal(values):
    search = search_of(recipe_of("random"))
    number, _ = search.propose()
    search.tell(number, values)
    assert search.study.trials[number].state is TrialState.FAIL
    assert search.propose()[0] == number + 1


def test_a_proposal_that_failed_may_be_told_again():
    search = search_of(recipe_of("random"))
    number, _ = search.propose()
    search.tell(number, None)
    search.tell(number, [0.25])
    search.tell(number, [0.125])  # it counts once
    assert [trial.value for trial in search.study.trials] == [None, 0.25]
    assert search.propose()[0] == 1


def test_a_pruned_trial_is_told_as_pruned():
    search = search_of(recipe_of("random", "median"))
    for _ in range(6):
        number, _ = search.propose()
        search.report(number, 1, 1.0)
        search.tell(number, [1.0])
    number, _ = search.propose()
    assert search.report(number, 1, 5.0)
    assert not search.report(number, 1, 5.0)  # once for each validation
    search.tell(number, None, pruned=True)
    trial = search.study.trials[number]
    assert (trial.state, trial.value) == (TrialState.PRUNED, 5.0)
    assert not search.report(search.propose()[0], 1, 0.5)


def test_the_best_is_the_highest_where_more_is_better():
    recipe = recipe_of("random", "median", "trainer.monitor_mode=max")
    search = search_of(recipe)
    for value in range(6):
        number, _ = search.propose()
        search.report(number, 1, float(value))
        search.tell(number, [value])
    assert search.study.best_value == 5
    assert search.report(search.propose()[0], 1, 1.0)


TWO = 'suite.objectives=[{metric: val_loss}, {metric: accuracy, mode: max}]'  # fmt: skip


@pytest.mark.parametrize("sampler", ["tpe", "nsgaii", "random"])
def test_several_objectives_have_a_front(sampler):
    search = search_of(recipe_of(sampler, "none", TWO))
    for loss, accuracy in ((1, 0.5), (2, 0.9), (3, 0.4)):
        number, _ = search.propose()
        assert not search.report(number, 1, loss)
        search.tell(number, [loss, accuracy])
    search.tell(search.propose()[0], [1.0])
    assert [trial.number for trial in search.study.best_trials] == [0, 1]
    assert search.study.trials[3].state is TrialState.FAIL


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda: recipe_of("tpe", "asha", TWO), "pruner needs a single objective"),
        (lambda: recipe_of("tpe", "asha", "suite.seeds=2"), "excludes folds and seeds"),
        (lambda: recipe_of("tpe", "none", "trainer.monitor=null"), "set trainer.monitor"),
        (lambda: recipe_of("hill"), "sampler"),
    ],
)
def test_a_search_that_cannot_be_is_refused_with_the_recipe(recipe, message):
    with pytest.raises(RecipeError, match=message):
        recipe()


def test_cmaes_is_refused_without_its_package_and_for_several_objectives(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    words = ['suite.search={space: {seed: "range(0, 9)"}, trials: 2, sampler: cmaes}']
    words += ["dataset.source=/data", "trainer.monitor=val_loss"]
    site = load_site("laptop").model_copy(update={"allowed_sources": ("/",)})
    with pytest.raises(RecipeError, match="pip install cmaes"):
        points.checked(load_recipe("digits", words), source_of("digits", words), site)
    with pytest.raises(RecipeError, match="one objective"):
        search_of(recipe_of("cmaes", "none", TWO))


def test_samplers_and_pruners_by_their_own_names():
    sampler = {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 3}
    pruner = {"_target_": "optuna.pruners.ThresholdPruner", "upper": 2.0}
    search = search_of(recipe_of(sampler, pruner))
    number, point = search.propose()
    assert isinstance(search.study.sampler, optuna.samplers.TPESampler)
    assert search_of(recipe_of(sampler, pruner)).propose() == (number, point)
    assert search.report(number, 1, 3.0)


def test_a_local_search_goes_on_around_the_best():
    """`cmaes` in a narrow space finds the lowest point, which random points miss."""

    def best(sampler: str) -> float:
        space = {"model.x": "interval(-1, 1)", "model.y": "interval(-1, 1)"}
        words = json.dumps({"space": space, "trials": 60, "sampler": sampler})
        search = search_of(load_recipe("digits", (f"suite.search={words}", *OF_LOSS)))
        found = []
        while proposed := search.propose():
            number, point = proposed
            found.append((point["model.x"] - 0.3) ** 2 + (point["model.y"] + 0.2) ** 2)
            search.tell(number, found[-1:])
        return min(found)

    assert best("cmaes") < 1e-3 < best("random")


@pytest.mark.parametrize(
    "target", ["os.system", "optuna.create_study", "optuna.pruners.NopPruner", "torch.nn.Linear"]
)
def test_a_sampler_is_nothing_else(target):
    with pytest.raises(TargetError):
        search_of(recipe_of({"_target_": target}))


def test_the_site_is_asked_about_samplers_of_ones_own():
    words = ["dataset.source=/data", "trainer.monitor=val_loss"]
    words.append("suite.search={space: {seed: [1, 2]}, trials: 2, sampler: {_target_: os.system}}")
    site = load_site("laptop").model_copy(update={"allowed_sources": ("/",)})
    with pytest.raises(TargetError, match=r"does not allow the target 'os\.system'"):
        points.checked(load_recipe("digits", words), source_of("digits", words), site)


def _recipe(**suite: Any) -> Recipe:
    space = {"model.learning_rate": "interval(0.1, 0.9)"}
    search = {"space": space, "trials": 6, "sampler": "tpe", **suite.pop("search", {})}
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


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Ends what hangs on it, at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()


def _soon(run: RunFolder, part: str, work: Callable[[], Any]) -> Any:
    return inform(run, part, work, within_s=0.05 if "/far/" in part else 60.0)


@pytest.mark.parametrize("fault", ["hangs", "fails"])
def test_trials_at_a_site_out_of_reach_are_not_judged_and_count_without_their_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: threading.Event, fault: str
) -> None:
    """It is waited for once; those at another site are judged as before."""
    asked: list[int] = []

    def read(run: RunFolder) -> History:
        if run.path.resolve().parts[-3] == "far":
            asked.append(int(run.path.name))
            released.wait(60 if fault == "hangs" else 0)
            raise OSError(errno.EIO, "I/O")
        return read_history(run)

    monkeypatch.setattr("headrace.suites.search.read_history", read)
    monkeypatch.setattr("headrace.suites.search.inform", _soon)
    run = RunFolder(tmp_path / "run")
    suite = _Suite(run, _recipe(search={"pruner": "median", "trials": 12}))
    for number in range(1, 10):
        suite.propose()
        place = RunFolder(tmp_path / ("far" if number in (1, 2, 9) else "near")).trial(number)
        place.path.mkdir(parents=True)
        run.trial(number).path.parent.mkdir(parents=True, exist_ok=True)
        run.trial(number).path.symlink_to(place.path)
        _validated(run, number, [1.0, 0.5, 0.1] if number < 8 else [3.0, 3.0, 3.0])
        if number < 8:
            suite.end(number, 0.1)
    row = suite.suite_state.rows
    assert [suite.source.should_prune(row[number]) for number in (8, 9)] == [True, False]
    assert asked[0] == 1
    assert fault == "fails" or asked == [1]
    assert suite.source.study.trials[0].value == 0.1
