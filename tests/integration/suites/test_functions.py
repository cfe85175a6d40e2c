"""Trials that are one call of a function (`train.function`), each in a process of its own."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.files.atomic import write_json, write_record
from headrace.files.layout import RunFolder
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult
from headrace.suites import suite_step
from headrace.suites.node_slots import capacity
from headrace.suites.records import Trial, TrialJob
from headrace.suites.suite_step import run_trial
from support.training import CODE, make_recipe, make_site, write_blobs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leftover_processes")]

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
    status = mailbox.status(run.trial(names.index("raise") + 1).attempt(1))
    assert status.state is StepState.FAILED
    number = names.index("well") + 1
    assert mailbox.status(run.trial(number).attempt(1)).metrics["loss"] == 0.5  # as it reported

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
