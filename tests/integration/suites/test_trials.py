"""Attempts at trials that share a node, and trials that are one call of a function."""

from __future__ import annotations

import json
import os
import re
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
from headrace.suites import node_slots, suite_step
from headrace.suites.node_slots import capacity
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
        return self.run.trial(number).step(attempt)


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
            assert re.search(r"; torch .*; 1 threads$", result.outputs["environment"])
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


GIB = 2**30
USER, LOST = FailureClass.USER_ERROR, FailureClass.INFRASTRUCTURE
FAILURES = {
    "raise": (USER, "objectives.value raised ValueError: no root of 0.5\n"),
    "exit": (USER, "objectives.value raised SystemExit: 3\n"),
    "text": (
        USER,
        "objectives.value returned 'high' as the metric 'value', which is not a number\n",
    ),
    "nothing": (USER, "objectives.value returned None, which holds no metrics\n"),
    "memory": (FailureClass.OUT_OF_MEMORY, "MemoryError: Unable to allocate 8.00 GiB"),
    "pause": (FailureClass.TIMED_OUT, "The function stopped after step 2, just before the time"),
    "hold": (FailureClass.TIMED_OUT, "Step trial hold ran past its limit of 1.5 s"),
}


def suite_in(folder: Path, target: str = "objectives.value", code: Path = CODE) -> RunFolder:
    run = RunFolder(folder / "runs" / "suite")
    content = {
        "name": "small",
        "seed": 7,
        "code": [str(code)],
        "dataset": {"name": "small", "path": "unused"},
        "train": {"function": {"_target_": target, "x": 0.5}},
        "evaluate": None,
    }
    write_record(run.site, make_site(folder, ranks=2, nodes=2, allowed_code=[str(code)]))
    write_record(run.recipe, make_recipe(content))
    write_json(run.source, content)
    return run


def job(run: RunFolder, number: int, name: str, **values: Any) -> TrialJob:
    return TrialJob(
        run_folder=str(run.path),
        lease_folder=str(run.path.parent.parent / "leases" / "lease"),
        trial=Trial(number=number, name=name, values=values, group=number),
        attempt=1,
        dataset=str(run.path.parent.parent / "dataset"),
        time_limit_s=1.5 if name == "hold" else None,
    )


def test_a_function_is_called_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = capacity().model_copy(update={"memory_bytes": 4 * GIB})
    monkeypatch.setattr(suite_step, "capacity", lambda: small)
    run = suite_in(tmp_path)
    write_blobs(tmp_path / "dataset")
    names = ["well", "learn", "nan", *FAILURES]
    jobs = [
        job(run, number, name, **{"train.function.fate": name})
        for number, name in enumerate(names, 1)
    ]
    with ThreadPoolExecutor(len(jobs)) as pool:
        results: dict[str, StepResult] = dict(zip(names, pool.map(run_trial, jobs), strict=True))
    for name, (kind, message) in FAILURES.items():
        failure = results[name].failure
        assert failure.failure_class is kind, failure
        assert failure.message.startswith(message)
    trace = results["raise"].failure.trace.splitlines()
    assert "objectives.py" in trace[1]
    assert trace[-1] == "ValueError: no root of 0.5"
    status = mailbox.status(run.trial(names.index("raise") + 1).step(1))
    assert status.state is StepState.FAILED
    number = names.index("well") + 1
    assert mailbox.status(run.trial(number).step(1)).metrics["loss"] == 0.5  # as it reported

    well = results["well"]
    assert well.outputs["metrics"] == {"value": 0.25, "torch": 0.0, "seed": 7.0}
    assert well.outputs["checkpoint"] == ""
    usage = well.usage
    assert usage.memory_bytes > 2**24
    assert (usage.gpus, usage.gpu_memory_bytes) == (0.0, None)
    assert 0 <= usage.train_s <= well.finished_at - well.started_at
    assert results["nan"].outputs["metrics"] == {"other": 1.0}
    learnt = results["learn"]
    assert learnt.outputs["metrics"] == {"value": 0.5, "samples": 11.0}
    assert learnt.outputs["restarts"] == 1
    assert Path(learnt.outputs["checkpoint"]).name == "half.txt"


def test_code_that_was_changed_is_imported_anew(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "mine").mkdir(parents=True)
    (code / "mine" / "__init__.py").write_text("def number(x):\n    return {'value': 1}\n")
    run = suite_in(tmp_path, "mine.number", code)
    call = {"train.function": {"_target_": "mine.number"}}
    (before, again) = (run_trial(job(run, number, "t", **call)) for number in (1, 2))
    assert before.outputs["metrics"] == again.outputs["metrics"] == {"value": 1.0}
    (code / "mine" / "__init__.py").write_text("def number(x):\n    return {'value': 2}\n")
    later = before.finished_at + 10
    os.utime(code / "mine" / "__init__.py", (later, later))
    assert run_trial(job(run, 3, "t", **call)).outputs["metrics"] == {"value": 2.0}
    call["train.function"]["_target_"] = "os.getcwd"
    refused = run_trial(job(run, 4, "t", **call))
    assert refused.failure.message.startswith("The site does not allow the target 'os.getcwd'")
