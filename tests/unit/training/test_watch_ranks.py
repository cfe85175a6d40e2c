"""Ranks as a node sees them, and when all ranks are launched again."""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.checkpoints.files import BestCheckpoint
from headrace.data.instantiate import Allowed
from headrace.errors import StepCancelledError, UserCodeError, UserError, WorkerLostError
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.files.lines import append_line
from headrace.processes.children import Child, ChildGroup
from headrace.recipe.evaluate import EvaluateSpec
from headrace.steps.history import EvaluatedRow, evaluated_file
from headrace.steps.mailbox import request_cancel
from headrace.training import function, progress
from headrace.training.function import call_function
from headrace.training.gang import Gang
from headrace.training.launch import rank_children
from headrace.training.launch_records import (
    FailureKind,
    NodeLaunch,
    NodeOutcome,
    NodeReady,
    TrainingProgress,
)
from headrace.training.progress import AttemptMeter, Follower
from headrace.training.rank import _check_metrics
from headrace.training.rank_failures import verdict
from headrace.training.watch_ranks import Beat, RankWatch, run_watched
from support.scripted_fleet import ScriptedFleet
from support.training import make_context, make_launch, make_recipe, make_site


@pytest.fixture
def launch(tmp_path: Path) -> NodeLaunch:
    made = make_launch(tmp_path)
    made.folder.path.mkdir(parents=True)
    return made


def test_a_rank_does_not_hang_because_the_clock_was_set(
    launch: NodeLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor because the machine has slept, as a laptop does."""
    Beat(launch.folder.beat(0)).tick()
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    child = Child(name="rank 0", command=command, log=tmp_path / "rank-0.log")
    with ChildGroup([child]) as group:
        watch = RankWatch(launch, group, [child], hang_timeout_s=600.0)
        set_to = time.time() + 3600
        monkeypatch.setattr(time, "time", lambda: set_to)
        assert watch.keep_on()


@pytest.mark.parametrize("reports", [False, True])
def test_a_script_hangs_only_if_it_has_reported_before(
    launch: NodeLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reports: bool
) -> None:
    monkeypatch.setattr("headrace.training.watch_ranks.START_S", 0.0)
    code = ("-c", "import time; time.sleep(600)")
    command = (sys.executable, "-m", "headrace.processes", "--", sys.executable, *code)
    child = Child(name="rank 0", command=command, log=tmp_path / "rank-0.log")
    with ChildGroup([child]) as group:
        watch = RankWatch(launch, group, [child], hang_timeout_s=0.0)
        beat = Beat(launch.folder.beat(0))
        if reports:
            beat.tick()
        assert watch.keep_on() is not reports


@pytest.mark.parametrize("is_done", [False, True])
def test_a_rank_that_ends_well_before_it_is_done_is_a_user_error(
    launch: NodeLaunch, tmp_path: Path, *, is_done: bool
) -> None:
    """As by a model that calls `os._exit(0)`."""
    if is_done:
        launch.folder.done(0).touch()
    command = (sys.executable, "-c", "import os; os._exit(0)")
    child = Child(name="rank 0", command=command, log=tmp_path / "rank-0.log")
    outcome = run_watched(launch, [child], 600.0)
    error = verdict([outcome])
    if is_done:
        assert error is None
    else:
        assert isinstance(error, UserError)
        assert "ended with exit code 0 in the middle of training" in error.what
        assert "os._exit" in error.hint


def test_a_metric_that_cannot_be_made_is_told_before_hours_of_training():
    top2 = {"_target_": "torchmetrics.classification.MulticlassAccuracy", "top_k": 2}
    allowed = Allowed(listed=("torchmetrics",))
    _check_metrics(None, allowed)
    _check_metrics(EvaluateSpec(metrics={"top2": {**top2, "num_classes": 3}}), allowed)
    with pytest.raises(UserCodeError, match="`num_clases`") as caught:
        _check_metrics(EvaluateSpec(metrics={"top2": {**top2, "num_clases": 3}}), allowed)
    assert "'evaluate.metrics.top2'" in caught.value.hint


def test_the_share_of_time_that_batches_were_waited_for_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    loader = SimpleNamespace(wait_s=5.0, num_samples=64, notes={})
    told, whole = (AttemptMeter(lambda: (2 * loader.num_samples, loader.wait_s)) for _ in range(2))
    clock.now_s, loader.wait_s, loader.num_samples = 104.0, 6.0, 96
    assert told.figures() == {"samples_per_s": 16.0, "data_wait": 0.25}
    told.restart()
    clock.now_s, loader.wait_s = 106.0, 8.0
    assert told.figures()["data_wait"] == 1.0  # since the last report
    assert whole.figures()["data_wait"] == 0.5  # of all


def reported_of(told: TrainingProgress, folder: Path) -> dict[str, float]:
    """What the status is told, of a run in a folder."""
    reported: dict[str, float] = {}
    context: Any = SimpleNamespace(
        report=lambda **figures: reported.update(figures),
        progress=lambda *_: None,
        run_folder=RunFolder(folder),
    )
    Follower(context, None, 2)(told)
    return reported


def test_what_is_waited_for_and_a_problem_that_ends_no_training_are_told(tmp_path: Path) -> None:
    phases: list[str] = []
    context: Any = SimpleNamespace(
        report=lambda **_: None,
        progress=lambda *told: phases.append(told[3]),
        folder=StepFolder(tmp_path),
        run_folder=RunFolder(tmp_path),
    )
    follower = Follower(context, None, 2)
    context.folder.waits.write_text("waits for 2 GPUs of box: ann holds 1")
    follower(None)
    context.folder.waits.unlink()
    follower(None)
    follower(TrainingProgress(epoch=0, step=3))
    follower.problem = "checkpoints are not copied to /full: no space"
    follower(TrainingProgress(epoch=0, step=4))
    assert phases[:2] == ["waits for 2 GPUs of box: ann holds 1", "running 2 ranks"]
    assert phases[2:] == ["epoch 1", "epoch 1; checkpoints are not copied to /full: no space"]


def test_the_figures_of_a_step_are_what_was_measured(tmp_path: Path) -> None:
    """No figure is told that nobody has measured, such as how busy an accelerator is."""
    measured = TrainingProgress(epoch=0, step=3, loss=0.5, samples_per_s=16.0, data_wait=0.25)
    told = reported_of(measured, tmp_path)
    assert told == {"samples_per_s": 16.0, "data_wait": 0.25, "loss": 0.5}


def test_the_newest_metrics_and_the_best_one_are_told_and_not_too_many(tmp_path: Path) -> None:
    best = BestCheckpoint(file="best-000000002.ckpt", metric="m0", value=0.9, epoch=0, step=2)
    folder = RunFolder(tmp_path).checkpoints
    write_record(folder / "best.json", best)
    (folder / best.file).touch()
    metrics = {"nan": float("nan"), **{f"m{index}": float(index) for index in range(30)}}
    told = reported_of(TrainingProgress(epoch=0, step=3, metrics=metrics), tmp_path)
    assert told["best m0"] == 0.9
    assert [name for name in told if name.startswith("m")] == [f"m{index}" for index in range(12)]


def test_what_the_newest_checkpoint_was_judged_to_be_is_told(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.history.mkdir()
    for step in (9, 6):
        metrics = {f"m{index}": step + index / 10 for index in range(5)}
        row = EvaluatedRow(at=1.0, run_id="r", step=step, split="val", metrics=metrics, report="")
        append_line(evaluated_file(run), row.model_dump_json())
    told = reported_of(TrainingProgress(epoch=0, step=10), tmp_path)
    judged = {name: value for name, value in told.items() if name.startswith("evaluated")}
    assert judged == {"evaluated step": 9.0} | {
        f"evaluated val/m{index}": 9 + index / 10 for index in range(3)
    }


K = FailureKind


def run_gang(folder: Path, fleet: ScriptedFleet) -> tuple[list[str], list[str]]:
    recipe = make_recipe({"model": {"_target_": "a.B"}, "train": {"max_restarts": 2}})
    context = make_context(folder, recipe, make_site(folder))
    seen: list[str] = []
    try:
        gang = Gang(
            context, fleet, (1, 2), str(folder), lambda progress: seen.append(str(progress))
        )
        return gang.run(), seen
    finally:
        assert all(launch.folder.stop.exists() for launch in fleet.launches)


def test_dead_ranks_and_workers_are_replaced(tmp_path):
    fleet = ScriptedFleet(K.KILLED, WorkerLostError("Worker node-0 died"), None)
    causes, seen = run_gang(tmp_path, fleet)
    assert causes == ["Rank 0: w", "Worker node-0 died"]
    assert [launch.number for launch in fleet.launches] == [1, 2, 3]
    assert seen == ["None"] * 6


class CancelledFleet(ScriptedFleet):
    """Its nodes see that the step was cancelled, and end, before the driver does."""

    def on_nodes(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        nodes: Sequence[Any],
        *,
        check: Callable[[], None],
    ) -> list[NodeOutcome]:
        (outcome,) = super().on_nodes(function, arguments, nodes, check=check)
        request_cancel(StepFolder(Path(arguments[0][0].step_folder)), "a test")
        return [outcome.model_copy(update={"stopped": True})]


def test_nodes_that_see_the_cancel_first_have_not_trained_to_the_end(tmp_path):
    with pytest.raises(StepCancelledError, match="a test"):
        run_gang(tmp_path, CancelledFleet(None))


def test_a_port_that_was_taken_costs_no_restart(tmp_path):
    """Pains 33."""
    fleet = ScriptedFleet(K.PORT_TAKEN, K.PORT_TAKEN, K.PORT_TAKEN, K.KILLED, None)
    assert len(run_gang(tmp_path, fleet)[0]) == 1
    assert len(fleet.launches) == 5


def test_ports_that_are_always_taken_end_it(tmp_path):
    """Pains 33."""
    with pytest.raises(WorkerLostError, match="after 2 restarts"):
        run_gang(tmp_path, ScriptedFleet(*[K.PORT_TAKEN] * 20))


@pytest.mark.parametrize("kind", [K.USER_ERROR, K.SCRIPT_FAILED])
def test_user_errors_are_not_tried_again(tmp_path, kind):
    fleet = ScriptedFleet(kind)
    with pytest.raises(UserError):
        run_gang(tmp_path, fleet)
    assert len(fleet.launches) == 1


def test_ranks_that_die_again_and_again_end_it(tmp_path):
    with pytest.raises(WorkerLostError, match=r"Rank 0: w \(after 2 restarts of all ranks\)"):
        run_gang(tmp_path, ScriptedFleet(K.KILLED, K.CRASHED, K.HUNG))


@pytest.mark.parametrize("mark", ["cancel", "exit", "result", "stop"])
def test_ranks_are_stopped_when_step_or_driver_is_over(tmp_path, mark):
    recipe = make_recipe({"model": {"_target_": "a.B"}})
    site = make_site(tmp_path)
    context = make_context(tmp_path, recipe, site)
    launch = make_launch(
        run_folder=str(context.run_folder.path), step_folder=str(context.folder.path)
    )
    launch.folder.path.mkdir()
    node = NodeReady(launch=launch, dataset="d", fingerprint="")
    children = rank_children(node, recipe, site.roles["gpu"])
    assert RankWatch(launch, ChildGroup([]), children, 300.0).keep_on()
    path = launch.folder.stop if mark == "stop" else getattr(context.folder, mark)
    path.write_text(json.dumps({}))
    assert not RankWatch(launch, ChildGroup([]), children, 300.0).keep_on()


class SavingFleet(ScriptedFleet):
    """Each launch leaves a file in the run's checkpoints before it ends as told."""

    def __init__(self, name: str, *ends: FailureKind | None) -> None:
        super().__init__(*ends)
        self._name = name

    def on_nodes(self, function: Any, arguments: Any, nodes: Any, *, check: Any) -> Any:
        launch = arguments[0][0]
        saved = Path(launch.run_folder) / "checkpoints" / self._name.format(launch.number)
        saved.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(saved, "w") as archive:
            archive.writestr("data", b"")
        return super().on_nodes(function, arguments, nodes, check=check)


def test_restarts_with_progress_between_them_do_not_count(tmp_path):
    """Ranks die six times, each time further; two restarts without progress are the most."""
    fleet = SavingFleet("step-{:09d}.ckpt", *[K.KILLED] * 6, None)
    assert len(run_gang(tmp_path, fleet)[0]) == 6


@pytest.mark.parametrize(("is_further", "num_calls"), [(True, 7), (False, 3)])
def test_restarts_of_a_function_are_counted_alike(tmp_path, monkeypatch, is_further, num_calls):
    """Its process is killed six times; each time it has left a checkpoint, or none at all."""
    function_recipe = {"train": {"function": {"_target_": "a.b"}, "max_restarts": 2}}
    context = make_context(
        tmp_path, make_recipe({**function_recipe, "model": None, "evaluate": None}),
        make_site(tmp_path),
    )  # fmt: skip
    calls = []

    def called(*_: Any) -> Any:
        calls.append(1)
        folder = context.run_folder.checkpoints
        folder.mkdir(exist_ok=True)
        if len(calls) == 7:
            return SimpleNamespace(metrics={"loss": 0.5})
        if is_further:
            saved = folder / f"at-{len(calls)}.txt"
            saved.touch()
            os.utime(saved, (len(calls), len(calls)))
        raise WorkerLostError("Its process was killed")

    monkeypatch.setattr(function, "_called", called)
    if is_further:
        assert call_function(context, ScriptedFleet(), "")["restarts"] == 6
    else:
        with pytest.raises(WorkerLostError, match="was killed"):
            call_function(context, ScriptedFleet(), "")
    assert len(calls) == num_calls


def test_files_of_callbacks_among_the_checkpoints_are_no_progress(tmp_path):
    """Training begins anew each time, and each time such a file is newer: it ends all the same."""
    fleet = SavingFleet("epoch={}.ckpt", *[K.KILLED] * 9)
    with pytest.raises(WorkerLostError, match="after 2 restarts"):
        run_gang(tmp_path, fleet)
