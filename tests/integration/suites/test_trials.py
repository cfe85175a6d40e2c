"""Attempts at trials that share a node: their results, and that none harms another."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.clusters.cancellable_call import call_while
from headrace.clusters.gpu_reservations import FOLDER, ReservationFile
from headrace.files.atomic import read_record, write_json, write_record
from headrace.files.layout import RunFolder
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.context import resolved
from headrace.steps.mailbox import StepResult
from headrace.suites import node_slots
from headrace.suites.records import Trial, TrialJob
from headrace.suites.suite_step import run_trial
from support.training import CODE, make_recipe, make_site, write_blobs
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leftover_processes")]

MIB = 2**20


class Suite:
    """A suite's run folder, whose trials are made in threads of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = RunFolder(folder / "runs" / "suite")
        self.notes = folder / "notes"
        self.notes.mkdir()
        write_blobs(folder / "dataset")
        content = {
            "name": "small",
            "code": [str(CODE)],
            "dataset": {"name": "small", "path": "unused", "splits": {"train": 0.8, "val": 0.2}},
            "data": {"global_batch_size": 16},
            "model": {"_target_": "trial_models.TrialModel", "notes": str(self.notes)},
            "trainer": {"accelerator": "cpu", "max_epochs": 1, "checkpoint_every_steps": 1},
            "train": {"max_restarts": 0},
            "evaluate": {"split": "val"},
        }
        site = make_site(folder, ranks=2, allowed_code=[str(CODE)])
        write_record(self.run.site, site)
        write_record(self.run.recipe, make_recipe(content))
        write_json(self.run.source, content)

    def job(self, number: int, attempt: int = 1, **content: Any) -> TrialJob:
        trial = Trial(
            number=number, name=f"t{number}", values=content.pop("values", {}), group=number
        )
        return TrialJob(
            run_folder=str(self.run.path),
            lease_folder=str(self.folder / "leases" / "lease"),
            trial=trial,
            attempt=attempt,
            dataset=str(self.folder / "dataset"),
            **content,
        )

    def step(self, number: int, attempt: int = 1) -> Any:
        return self.run.trial(number).attempt(attempt)


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa,GPU-bb")
    monkeypatch.setenv(FOLDER, str(tmp_path / "claims"))
    monkeypatch.setattr(node_slots, "available_memory_bytes", lambda: 2048 * MIB)
    node_slots.capacity.cache_clear()
    yield Suite(tmp_path)
    node_slots.capacity.cache_clear()


def processes(named: str) -> list[psutil.Process]:
    below = psutil.Process().children(recursive=True)
    return [each for each in below if each.name().startswith(named)]


def test_trials_share_a_node(suite: Suite) -> None:
    """In one test, as the node's processes are forked from one that has imported PyTorch."""
    _parts_and_results_are_their_own(suite)
    _no_fate_of_one_reaches_the_others(suite)


def _parts_and_results_are_their_own(suite: Suite) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    before = dict(os.environ)
    jobs = [
        suite.job(at + 1, values={"model.rate": rate}, gpus=(at,), cpus=(cpus[at % len(cpus)],))
        for at, rate in enumerate((0.1, 0.01))
    ]
    with ThreadPoolExecutor(2) as pool:
        with ReservationFile("another", ("GPU-bb",), 1) as other:
            assert other.take()
            futures = [pool.submit(run_trial, job) for job in jobs]
            waits = [suite.step(number).waits for number in (1, 2)]
            wait_until(lambda: any(map(Path.exists, waits)), 60, "one of them to wait")
        results = [future.result() for future in futures]
        assert dict(os.environ) == before
        assert processes("predictor") == []
        masks = set()
        for job, result in zip(jobs, results, strict=True):
            assert result.failure is None
            rate = job.trial.values["model.rate"]
            part = json.loads((suite.notes / f"part-{rate}.json").read_text())
            masks.add(part["CUDA_VISIBLE_DEVICES"])
            assert part["cpus"] == list(job.cpus)
            assert part["OMP_NUM_THREADS"] == "1"
            folder = suite.run.trial(job.trial.number)
            recipe, _ = resolved(folder)
            assert recipe.model.rate == rate
            assert result.outputs["metrics"].keys() >= {"val/accuracy", "accuracy", "loss"}
            assert "nothing" not in result.outputs["metrics"]
            assert Path(result.outputs["report"]).is_relative_to(folder.path)
            assert Path(result.outputs["checkpoint"]).is_relative_to(folder.checkpoints)
            assert result.outputs["world_size"] == 1
            step = suite.step(job.trial.number)
            assert read_record(step.result, StepResult) == result
            assert mailbox.status(step).state is StepState.SUCCEEDED
            assert (step.logs / "rank-0.log").exists()
            usage = result.usage
            assert usage.samples == 80
            told = (usage.staging_s, usage.start_s, usage.train_s, usage.evaluate_s)
            assert sum(told) <= result.finished_at - result.started_at
            assert min(told) > 0
            assert usage.memory_bytes > 50 * MIB
        assert masks == {"GPU-aa", "GPU-bb"}
        assert run_trial(jobs[0]) == results[0]  # it is not made again
        again = run_trial(suite.job(1, attempt=2, values={"model.rate": 0.1}))
    assert again.outputs["checkpoint"] == results[0].outputs["checkpoint"]
    assert again.usage.train_s is None  # what is trained is not trained again


def _no_fate_of_one_reaches_the_others(suite: Suite) -> None:
    def job(number: int, fate: str, **content: Any) -> TrialJob:
        values = {"model.fate": fate, "model.notes": str(suite.notes / str(number))}
        values |= {"evaluate": None}
        (suite.notes / str(number)).mkdir(exist_ok=True)
        return suite.job(number, values=values, **content)

    with ThreadPoolExecutor(5) as pool, ExitStack() as at_end:
        for number in (11, 12):
            at_end.callback(mailbox.request_cancel, suite.step(number), "the test is over")
        pruned = pool.submit(run_trial, job(11, "hold"))
        is_wanted = threading.Event()
        is_wanted.set()
        left = pool.submit(call_while, is_wanted.is_set, run_trial, job(12, "hold"))
        killed = pool.submit(run_trial, job(13, "kill_group"))
        greedy = pool.submit(run_trial, job(14, "eat_memory"))
        endless = pool.submit(run_trial, job(15, "hold", time_limit_s=2.0))
        many = pool.submit(run_trial, job(16, "open_files"))
        assert many.result().failure.failure_class is FailureClass.USER_ERROR
        assert "Too many open files" in many.result().failure.message
        assert greedy.result().failure.failure_class is FailureClass.OUT_OF_MEMORY
        assert killed.result().failure.failure_class is FailureClass.INFRASTRUCTURE
        assert endless.result().state is StepState.TIMED_OUT

        again = run_trial(job(13, "kill_group", attempt=2))
        assert again.failure is None
        lines = suite.step(13, 2).events.read_text().splitlines()
        resumed = [json.loads(line).get("resume") for line in lines if "launch" in line]
        assert Path(resumed[0]).name == "step-000000002.ckpt"

        for number in (11, 12):  # both are alive after all that
            held = suite.notes / str(number) / "held-3"
            wait_until(held.exists, 60, "step 3")
        mailbox.request_cancel(suite.step(11), "pruned: others did better by now")
        is_wanted.clear()
        assert pruned.result().state is StepState.SUCCEEDED
        assert pruned.result().outputs["pruned"] is True
        assert left.result().state is StepState.LOST


def test_a_trial_that_cannot_begin_has_a_result_too(suite: Suite) -> None:
    wrong = run_trial(suite.job(1, values={"trainer.max_epochs": "many"}))
    assert wrong.failure.failure_class is FailureClass.USER_ERROR
    assert "trainer.max_epochs" in wrong.failure.message
    nowhere = run_trial(suite.job(2, gpus=(2,)))
    assert nowhere.failure.message.startswith("GPU 2 was assigned, but the node has 2")
    suite.step(3).cancel.parent.mkdir(parents=True)
    mailbox.request_cancel(suite.step(3), "enough")
    assert run_trial(suite.job(3)).state is StepState.CANCELLED
    assert not list(suite.run.trial(3).checkpoints.glob("*"))
    with (
        ReservationFile("another", ("GPU-aa", "GPU-bb"), 2) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        assert other.take()
        waits = pool.submit(run_trial, suite.job(4, gpus=(0,)))
        wait_until(suite.step(4).waits.exists, 60, "the trial to wait")
        mailbox.request_cancel(suite.step(4), "enough")
        assert waits.result().state is StepState.CANCELLED
        assert "holds 2" in waits.result().failure.message
