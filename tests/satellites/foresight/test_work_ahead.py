"""Trials of which the time is asked, from runs and suites that are in the ledger."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import load_recipe, load_site
from headrace.runs.runs import Run
from headrace.states import LeaseState, StepState
from headrace.steps.history import HistoryRow, training_file
from headrace.suites.records import Added, Ended, Trial
from headrace_foresight.past_attempts import alike_of, earlier, past_of
from headrace_foresight.prediction import predict
from headrace_foresight.work_ahead import nodes_of, places_of, suite_ahead, work_of
from support.command_line import headrace
from support.factories import built_in, write_site
from support.past_runs import step_ended
from support.runs import attempt_row_of, lease_on_disk, make_run


def past_run(epochs: int, seconds: float) -> Run:
    """A run that trained for so long, and evaluated for 5 s."""
    run = make_run(overrides=(f"trainer.max_epochs={epochs}",))
    lease = lease_on_disk(run, "gpu")
    step_ended(run, "train", lease, seconds)
    step_ended(run, "evaluate", lease, 5.0)
    return run


def journal(
    run: Run, *seconds: float, more: int = 0, waited_s: float = 0.0, pruned: int = 0
) -> None:
    """A suite's journal: trials of 1, 2, … epochs that took so long, and some without an end.

    The first two waited so much longer for their first batches than the others; the last ones that
    have ended were pruned.
    """
    lines = []
    for number in range(1, len(seconds) + more + 1):
        values: dict[str, Any] = {"trainer.max_epochs": number}
        trial = Trial(number=number, name=str(number), values=values, group=number)
        lines.append(Added(trial=trial).model_dump_json())
    for number, each in enumerate(seconds, 1):
        wait_s = waited_s if number <= 2 else 0.0
        end = Ended(number=number, attempt=1, state=StepState.SUCCEEDED, is_final=True,
                    started_at=5.0, finished_at=5.0 + each + wait_s,
                    pruned=number > len(seconds) - pruned,
                    usage=AttemptUsage(start_s=0.1 + wait_s))  # fmt: skip
        lines.append(end.model_dump_json())
    run.folder.journal.write_text("\n".join(lines) + '\n{"event": "ended", "numb')


def test_a_recipe_is_forecast_from_runs_with_other_epochs(headrace_home: Path):
    for epochs, seconds in ((2, 15.0), (4, 35.0), (8, 75.0)):
        past_run(epochs, seconds)
    work = work_of("digits", ["trainer.max_epochs=6"], "laptop")
    assert work.source == "digits, by 3 earlier runs or trials on laptop"
    (trial,) = work.trials
    assert trial.seconds == pytest.approx(60, rel=0.1)
    low, high = trial.interval
    assert low < 60 < high


def test_other_datasets_and_unfinished_steps_tell_nothing(headrace_home: Path):
    past_run(2, 20.0)
    other = make_run(overrides=("dataset.splits={train: 0.8, val: 0.1, test: 0.1}",))
    step_ended(other, "train", lease_on_disk(other, "gpu"), 500.0)
    failed = make_run()
    step_ended(failed, "train", lease_on_disk(failed, "gpu"), 900.0, state=StepState.FAILED)
    recipe = load_recipe("digits", ())
    taken = earlier(recipe, load_site("laptop"), "gpu")
    assert [one.seconds for one in alike_of("train", recipe, taken)] == [20.0]


def test_a_suite_is_known_as_far_as_it_has_ended_and_tells_of_the_next(headrace_home: Path):
    run = make_run()
    journal(run, 11.0, 20.0, 30.0, more=1)
    attempt_row_of(run, "suite", lease_on_disk(run, "gpu"), state=StepState.FAILED,
                   started_at=1.0, finished_at=70.0)  # fmt: skip
    work = work_of(run.run_id, [], "laptop")
    assert [each.seconds for each in work.trials] == [
        11.0, 20.0, 30.0, pytest.approx(40.0, rel=0.1),
    ]  # fmt: skip
    assert work.source.endswith("as they were, 1 forecast from them")
    suite = "suite={grid: {trainer.max_epochs: [2, 3], seed: [1, 2]}}"
    again = work_of("digits", [f"+{suite}"], "laptop")
    assert again.source == "4 trials of digits, by 3 earlier runs or trials on laptop"
    assert [each.seconds for each in again.trials] == [
        pytest.approx(seconds, rel=0.1) for seconds in (20, 20, 30, 30)
    ]
    recipe, site = load_recipe("digits", [f"+{suite}"]), load_site("laptop")
    whole, num_known = suite_ahead(recipe, site, past_of(recipe, site, "suite"))
    assert num_known == 3
    assert whole is not None
    spans = {1: 100.0, 2: 50.0, 3: 50.0}  # 20, 20, 30 and 30 s, the longest first
    at_once = places_of(recipe, site.roles["gpu"])
    assert whole.seconds == pytest.approx(spans.get(at_once, 30.0), rel=0.15)
    shown = headrace("plan", "digits", f"+{suite}").output
    assert re.search(r"^suite [\d.:]+( s)?, by 3 earlier runs$", shown, re.M)
    assert "for suite" in shown
    told = headrace("what-if", run.run_id, "--nodes", "1,2", "--json")
    one, two = json.loads(told.output)
    assert one["makespan_s"]["mean"] == pytest.approx(101, rel=0.1)
    assert two["makespan_s"]["mean"] == pytest.approx(51, rel=0.15)


def test_suites_that_have_succeeded_tell_best_with_what_they_take_around_their_trials(
    headrace_home: Path,
):
    past_run(2, 500.0)  # a process of its own starts, and nobody shares the node
    for seconds, state in (([90.0] * 4, StepState.FAILED), ([10.0] * 4, StepState.SUCCEEDED)):
        run = make_run()
        journal(run, *seconds, waited_s=2.0)
        attempt_row_of(run, "suite", lease_on_disk(run, "gpu"), state=state,
                       started_at=1.0, finished_at=22.0)  # fmt: skip
    suite = "suite={grid: {seed: [1, 2]}, max_running: 1}"
    recipe, site = load_recipe("digits", [f"+{suite}", "trainer.max_epochs=2"]), load_site("laptop")
    whole, num_known = suite_ahead(recipe, site, past_of(recipe, site, "suite"))
    assert num_known == 4
    assert whole.seconds == pytest.approx(2 * 10 + 2 + 21 - 12, rel=0.03)


def test_trials_are_ended_early_as_in_suites_with_the_same_pruner_or_by_its_rule(
    headrace_home: Path,
):
    for epochs, seconds in ((2, 20.0), (4, 40.0), (8, 80.0)):
        past_run(epochs, seconds)
    space = "{model.learning_rate: 'interval(1e-4, 1e-1)'}"

    def words(pruner: str) -> tuple[str, ...]:
        search = f"{{space: {space}, trials: 20, pruner: {pruner}}}"
        suite = f"+suite={{search: {search}, max_running: 1}}"
        return suite, "trainer.max_epochs=10", "trainer.monitor=val/accuracy"

    def foretold(pruner: str) -> float:
        recipe, site = load_recipe("digits", words(pruner)), load_site("laptop")
        whole, _ = suite_ahead(recipe, site, past_of(recipe, site, "suite"))
        return whole.seconds

    whole_s = foretold("none")
    assert 0.2 * whole_s < foretold("asha") < 0.6 * whole_s  # by its rule
    run = make_run(overrides=words("asha"))
    journal(run, *(10.0 * number for number in range(1, 7)), 7.0, 8.0, pruned=2)
    attempt_row_of(run, "suite", lease_on_disk(run, "gpu"), state=StepState.SUCCEEDED,
                   started_at=5.0, finished_at=70.0)  # fmt: skip
    after_s = foretold("none")
    assert foretold("asha") == pytest.approx(after_s * (6 + 2 * 0.1) / 8, rel=0.1)
    assert 0.3 * after_s < foretold("median") < 0.7 * after_s  # what asha did tells nothing of it


def test_trials_tell_of_the_first_run_by_their_own_histories(headrace_home: Path):
    splits = "dataset.splits={train: 0.64, val: 0.18, test: 0.18}"
    run = make_run(overrides=(splits,))
    step_ended(run, "pack", lease_on_disk(run, "cpu"), 1.0, outputs={"num_samples": 1000})
    step_ended(run, "suite", lease_on_disk(run, "gpu"), 90.0)
    journal(run, 13.0, 23.0, 33.0)  # 3 s, and a second for each of ten batches an epoch
    lines = run.folder.journal.read_text().replace('"evaluate_s":null', '"evaluate_s":2.0')
    run.folder.journal.write_text(lines)
    for number in (1, 2, 3):
        file = training_file(run.folder.trial(number))
        file.parent.mkdir(parents=True)
        rows = [
            HistoryRow(at=0.0, launch=1, starts=True, epoch=0, step=0),
            HistoryRow(at=1.0, launch=1, epoch=0, step=2, samples_per_s=64.0),
            HistoryRow(at=10.0 * number, launch=1, epoch=number - 1, step=20 * number),
        ]
        file.write_text("".join(f"{row.model_dump_json()}\n" for row in rows))
    recipe = load_recipe("digits", (splits, "trainer.max_epochs=20"))
    found = {part.name: part for part in predict(recipe, load_site("laptop"), "train").parts}
    # two ranks share the samples of a step, half of which is taken for fixed
    assert found["train"].seconds == pytest.approx(1.0 + 200 * 0.75, rel=0.05)
    assert found["evaluate"].seconds == pytest.approx(2.0, rel=0.05)
    assert found["train"].num_known == 3


def test_another_day_may_be_slower_for_all_trials_together(headrace_home: Path):
    run = make_run()
    journal(run, *(10.0 * number for number in range(1, 15)))
    attempt_row_of(run, "suite", lease_on_disk(run, "gpu"), state=StepState.SUCCEEDED,
                   started_at=1.0, finished_at=70.0)  # fmt: skip
    here = work_of("digits", ["+suite={grid: {trainer.max_epochs: [5, 9]}}"], "laptop").trials
    assert [each.seconds for each in here] == [
        pytest.approx(50, rel=0.1),
        pytest.approx(90, rel=0.1),
    ]
    assert all(0.15 <= each.shared < 0.2 for each in here)


def test_places_are_counted_by_what_a_trial_takes(headrace_home: Path):
    role = load_site("slurm-dev").roles["gpu"]
    assert (role.nodes, role.batch.gpus_per_node) == (2, 2)
    for suite, places in (
        ("{grid: {seed: [1]}}", 4),
        ("{grid: {seed: [1]}, trials_per_gpu: 3}", 12),
        ("{grid: {seed: [1]}, max_running: 3}", 3),
    ):
        recipe = load_recipe("digits", [f"+suite={suite}", "trainer.accelerator=gpu"])
        assert places_of(recipe, role) == places
    words = ("+suite={grid: {seed: [1]}}", "train.ranks_per_node=2", "trainer.accelerator=gpu")
    wide = load_recipe("digits", words)
    assert places_of(wide, role) == 2


def test_a_place_is_as_its_leases_were(headrace_home: Path):
    assert nodes_of("laptop").boot_s == 0.0
    run = make_run()
    lease_id = lease_on_disk(run, "gpu")
    asked_at = open_ledger().lease(lease_id).created_at
    open_ledger().set_lease_state(lease_id, LeaseState.READY, ready_at=asked_at + 7.0)
    place = nodes_of("laptop")
    assert (place.count, place.gpus, place.queue_s) == (1, 2, 0.0)
    assert place.boot_s == pytest.approx(7.0)
    assert place.usd_per_hour is None
    roles = built_in("sites", "slurm-dev")["roles"]
    roles["gpu"]["price"] = {"usd_per_node_hour": 1.5}
    write_site(headrace_home, "priced", like="slurm-dev", roles=roles)
    priced = nodes_of("priced")
    assert (priced.usd_per_hour, priced.spot_usd_per_hour) == (1.5, None)
