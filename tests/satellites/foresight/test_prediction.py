"""What a run will take, told beforehand from runs in the ledger, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.words import ends, predicted
from headrace.errors import RecipeError
from headrace.execution.ticks import with_watch
from headrace.files.atomic import write_json
from headrace.files.layout import checkpoint_name
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import load_recipe, load_site
from headrace.runs.prediction import Ahead, Prediction
from headrace.runs.runs import Run
from headrace.states import FailureClass, StepState
from headrace.status.run import run_views
from headrace.status.run_details import run_details
from headrace.steps.history import training_file
from headrace.steps.retry_policy import PROGRESS
from headrace_foresight.past_attempts import earlier
from headrace_foresight.prediction import predict
from support.command_line import headrace
from support.past_runs import STEPS, past_run
from support.runs import attempt_row_of, lease_on_disk, make_run


def told(*overrides: str) -> Prediction:
    return predict(load_recipe("digits", overrides), load_site("laptop"), "train")


def test_only_the_time_between_batches_grows_with_the_epochs(headrace_home: Path):
    past_run(10, "dataset.splits={train: 0.64, val: 0.18, test: 0.18}")
    overrides = ("dataset.splits={train: 0.64, val: 0.18, test: 0.18}", "trainer.max_epochs=40")
    found = told(*overrides)
    parts = {part.name: part.seconds for part in found.parts}
    assert parts == {
        **{name: pytest.approx(seconds) for name, seconds in STEPS.items()},
        "pack": pytest.approx(0.04),  # it is found there
        "train": pytest.approx(10 + 400 * 0.5),  # 640 samples an epoch are ten batches
        "between": pytest.approx(13.0, rel=0.01),
    }
    assert found.seconds == pytest.approx(228.0, rel=0.1)
    assert found.half_s is not None
    assert found.half_s > 20  # one run is one run
    assert (found.unknown, found.gpu_hours, found.num_bytes) == ((), 0.0, 5e6)
    short = told(overrides[0], "trainer.max_steps=20", "trainer.accelerator=gpu")
    assert {part.name: part.seconds for part in short.parts}["train"] == pytest.approx(20.0)
    assert short.gpu_hours == pytest.approx((1 + 20 + 4) * 2 / 3600)


def test_what_was_unlike_the_next_run_tells_only_as_long_as_nothing_else_does(headrace_home: Path):
    past_run(10)  # it packed: processes start meanwhile, and nobody waits for them
    again = past_run(10, batch_s=9.0, packed_s=0.1)
    attempt_row_of(again, "train", f"{again.run_id}-gpu-1", attempt=2, key="again",
                   state=StepState.SUCCEEDED, started_at=1.0, finished_at=900.0)  # fmt: skip
    found = {"packed_s": 0.1, "batch_s": 0.5, "start_s": 16.0}
    past_run(1, **{**found, "first_s": 9.0})
    past_run(20, **found)
    parts = {part.name: part for part in told("trainer.max_epochs=40").parts}
    assert parts["pack"].seconds == pytest.approx(0.1)
    assert (parts["pack"].num_known, parts["train"].num_known) == (3, 2)
    # ten whole batches an epoch, of which the first of the short run was slow
    assert parts["train"].seconds == pytest.approx(16 + 200, rel=0.03)


SPLITS = "dataset.splits={train: 0.64, val: 0.18, test: 0.18}"


def seconds_of_training(*overrides: str) -> float:
    return {part.name: part.seconds for part in told(*overrides).parts}["train"]


def past_training(epochs: int, batch: int, batch_s: float, **more: Any) -> None:
    past_run(epochs, SPLITS, batch=batch, batch_s=batch_s, packed_s=0.1, **more)


def test_half_of_a_step_grows_with_the_batch_as_long_as_one_size_is_known(headrace_home: Path):
    for epochs in (4, 8, 12):
        past_training(epochs, 32, 0.4)
    halved = seconds_of_training(SPLITS, "trainer.max_epochs=20", "data.global_batch_size=16")
    assert halved == pytest.approx(10 + 800 * 0.3, rel=0.02)
    doubled = seconds_of_training(SPLITS, "trainer.max_epochs=20", "data.global_batch_size=64")
    assert doubled == pytest.approx(10 + 200 * 0.6, rel=0.02)


@pytest.mark.parametrize("fixed_s", [0.0, 0.2, 0.5])
def test_two_batch_sizes_tell_what_a_third_takes(headrace_home: Path, fixed_s: float):
    for epochs, batch in ((4, 32), (9, 128), (6, 32), (5, 128)):
        past_training(epochs, batch, fixed_s + 0.004 * batch)
    for batch in (16, 64, 128):
        words = (SPLITS, "trainer.max_epochs=20", f"data.global_batch_size={batch}")
        took_s = 10 + 640 / batch * 20 * (fixed_s + 0.004 * batch)
        assert seconds_of_training(*words) == pytest.approx(took_s, rel=0.06)


def test_steps_of_several_optimizers_are_those_of_one_batch(headrace_home: Path):
    for epochs in (2, 8, 3):
        past_training(epochs, 32, 0.4, steps_a_batch=2)
    assert seconds_of_training(SPLITS, "trainer.max_epochs=6", "data.global_batch_size=32") == (
        pytest.approx(10 + 120 * 0.4, rel=0.02)
    )
    few = (SPLITS, "trainer.max_epochs=6", "data.global_batch_size=32", "trainer.max_steps=100")
    assert seconds_of_training(*few) == pytest.approx(10 + 50 * 0.4, rel=0.02)


def test_more_runs_make_the_interval_narrower(headrace_home: Path):
    past_run(4)
    wide = told()
    for epochs in (5, 8):
        past_run(epochs)
    narrow = told()
    assert wide.half_s is not None
    assert narrow.half_s is not None
    assert narrow.half_s < wide.half_s / 2


def test_a_run_that_nothing_tells_of_is_told_so(headrace_home: Path):
    shown = headrace("plan", "digits").output
    assert "no earlier run shows how long pack, stage, train, evaluate will take here" in shown
    assert "`headrace plan --calibrate` runs 50 steps" in shown
    assert not list(headrace_home.glob("ledger*"))
    past_run(4)
    own = ("model=null", "evaluate=null", f"train.script={__file__}")
    shown = headrace("plan", "digits", *own).output
    assert "no earlier run shows how long train will take here" in shown
    assert "takes" not in shown


def test_plan_tells_time_and_size(headrace_home: Path):
    past_run(15)
    shown = headrace("plan", "digits").output
    assert "takes 1:" in shown
    assert "train 1:25, evaluate 4.0 s" in shown  # 700 samples an epoch are ten whole batches
    assert "time between 13.0 s, by 1 earlier run\n" in shown
    assert "the packed dataset has 5MB" in shown
    whole = json.loads(headrace("plan", "digits", "--json").output)
    assert whole["prediction"]["unknown"] == []
    assert [lease["role"] for lease in whole["leases"]] == ["cpu", "gpu"]


def test_a_short_run_tells_how_long_a_whole_one_takes(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Run] = []

    def done(run: Run, tick: Callable[[], None]) -> None:
        asked.append(run)
        past_run(15)

    monkeypatch.setattr("headrace.cli.plan.execute", done)
    shown = headrace("plan", "digits", "trainer.max_epochs=15", "--calibrate").output
    assert "train 1:25" in shown
    assert asked[0].recipe.trainer.max_steps == 50
    headrace("plan", "digits", "trainer.max_steps=7", "--calibrate")
    assert asked[1].recipe.trainer.max_steps == 7
    with pytest.raises(RecipeError, match="trains by a script"):
        headrace("plan", "digits", "model=null", "train.script=train.py", "evaluate=null",
                 "--calibrate")  # fmt: skip


def test_a_history_that_is_damaged_is_left_out(headrace_home: Path):
    run = past_run(4)
    training_file(run.folder).write_text("{\n")
    taken = earlier(run.recipe, run.site, "gpu")
    assert [each.steps.loop_s for each in taken if each.kind == "train"] == [0.0]
    assert [each.seconds for each in taken if each.kind == "train"] == [30.0]
    assert seconds_of_training("trainer.max_epochs=8") == pytest.approx(60.0)  # as epochs grow


def test_what_was_foretold_is_kept_and_shown_beside_what_it_took(headrace_home: Path):
    past_run(15)
    run = make_run()
    ticks: list[None] = []
    tick = with_watch(run, lambda: ticks.append(None))
    tick()
    first = run.folder.prediction.read_text()
    past_run(4, batch_s=9.0)
    tick()
    assert (run.folder.prediction.read_text(), len(ticks)) == (first, 2)
    gang = lease_on_disk(run, "gpu")
    ahead = run_details(run.run_id).ahead
    assert ahead.eta_s == pytest.approx(105, rel=0.15)
    for number in (1, 2):
        attempt_row_of(
            run, "train", gang, attempt=number, key=f"{run.run_id}/train/{number}",
            state=StepState.FAILED, failure_class=FailureClass.INFRASTRUCTURE,
            message="no such file\n  Correct it.", outputs={PROGRESS: 10.0},
            started_at=1.0, finished_at=2.0,
        )  # fmt: skip
    failing = run_details(run.run_id)
    assert failing.ahead.eta_s is None  # no end is in sight while attempts fail without progress
    step = failing.steps[2]
    assert (step.failures, step.kept, step.last_failure) == (1, 10.0, "no such file")
    (row,) = run_views([open_ledger().run(run.run_id)])
    assert row.eta_s is None
    saved = run.folder.checkpoints / checkpoint_name(20)
    saved.parent.mkdir()
    saved.touch()
    going = run_details(run.run_id).ahead
    assert going.eta_s is not None
    for number, name in enumerate(("pack", "stage", "train")):
        attempt_row_of(
            run, name, gang, attempt=3 + number, key=f"{run.run_id}/{name}/3",
            state=StepState.SUCCEEDED, started_at=1.0, finished_at=2.0,
        )  # fmt: skip
    late = run_details(run.run_id).ahead
    assert late.predicted_s == ahead.predicted_s
    assert late.eta_s == pytest.approx(4 + 13 / 4, rel=0.4)  # evaluation is left
    open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, 99.0)
    over = run_details(run.run_id)
    assert over.ahead.eta_s is None
    shown = headrace("status", run.run_id).output
    assert "predicted" in shown
    assert "took" in shown


def test_words_of_what_is_ahead():
    ahead = Ahead(predicted_s=190.0, predicted_half_s=20.0, eta_s=65.0, eta_half_s=5.0)
    assert list(predicted(ahead, 185.0)) == [("predicted", "3:10 ± 20.0 s, took 3:05")]
    assert ends(ahead) == " · ends in 1:05 ± 5.0 s"
    blind = Ahead(predicted_s=None, predicted_half_s=None, eta_s=None, eta_half_s=None)
    assert (list(predicted(blind, 1.0)), ends(blind), ends(None)) == ([], "", "")


def test_a_run_goes_on_where_nothing_can_be_foretold(headrace_home: Path):
    run = make_run()
    write_json(run.folder.prediction, {"seconds": "many"})
    with_watch(run, lambda: None)()
    assert "many" in run.folder.prediction.read_text()
