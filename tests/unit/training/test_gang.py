"""When all ranks are launched again, and when not."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import StepCancelledError, UserError, WorkerLostError
from headrace.files.layout import StepFolder
from headrace.processes.children import ChildGroup
from headrace.steps.mailbox import request_cancel
from headrace.training import function
from headrace.training.function import call_function
from headrace.training.gang import Gang
from headrace.training.launch import rank_children
from headrace.training.launch_records import FailureKind, NodeOutcome, NodeReady
from headrace.training.watch_ranks import RankWatch
from support.scripted_fleet import ScriptedFleet
from support.training import make_context, make_launch, make_recipe, make_site

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
