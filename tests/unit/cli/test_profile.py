"""`headrace profile`: whom it asks, how it waits, what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.profile import numbers
from headrace.errors import StepError, UserError
from headrace.execution import profiles
from headrace.execution.profiles import first_step
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import StepFolder
from headrace.processes import ProcessIdentity
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.steps.mailbox import Progress, StepResult, StepStatus
from headrace.steps.profile import Operator, ProfileRequest, RankProfile
from headrace.training.records import LaunchFolder, NodeLaunch, NodeReady
from support.command_line import headrace
from support.runs import attempt_row_of, lease_on_disk, make_run

pytestmark = pytest.mark.usefixtures("headrace_home")


def training(run: Run, **status: Any) -> StepFolder:
    """A training of two ranks at step 40 of 100, as it looks on the disk."""
    lease_id = lease_on_disk(run, "gpu", host=ProcessIdentity.of())
    attempt_row_of(run, "train", lease_id, state=StepState.RUNNING, number=1)
    step = run.lease_folder(lease_id).step(1)
    progress = Progress(done=40, total=100, unit="steps")
    write_record(
        step.status, StepStatus(**{"state": StepState.RUNNING, "progress": progress} | status)
    )
    launch = NodeLaunch(
        run_folder="", step_folder="", dataset="", number=1, node_index=0, node_name="n0",
        num_nodes=1, ranks_per_node=2, host="", master_address="", master_port=0, resume=None,
    )  # fmt: skip
    folder = LaunchFolder(step.parts / "launch-001")
    write_record(folder.ready(0), NodeReady(launch=launch, dataset="", fingerprint=""))
    return step


def answering(
    run: Run, step: StepFolder, monkeypatch: pytest.MonkeyPatch, **told: Any
) -> list[ProfileRequest]:
    """Have one more rank answer at each look; gives what was asked."""
    asked: list[ProfileRequest] = []

    def answer(_: float) -> None:
        request = read_record(step.profile, ProfileRequest)
        assert request is not None
        asked.append(request)
        rank = request.ranks[len(asked) - 1]
        operator = Operator(name="aten::mm", calls=10, cpu_s=0.02, device_s=0.0, num_bytes=0)
        profile = RankProfile(
            rank=rank, node="n0", step=42, num_steps=5, seconds=0.1, trace=f"/{rank}.gz",
            operators=(operator,),
        )  # fmt: skip
        write_record(request.answer(run.folder, rank), profile.model_copy(update=told))

    monkeypatch.setattr(profiles.time, "sleep", answer)
    return asked


def test_all_asked_ranks_are_waited_for_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    step = training(run, rate=1.5)
    asked = answering(run, step, monkeypatch)
    done = headrace("profile", run.run_id, "--ranks", "0-1", "--memory", "--lines", "m:f")
    assert done.exit_code == 0, done.output
    wanted = ProfileRequest(first_step=44, num_steps=5, ranks=(0, 1), memory=True, lines=("m:f",))
    assert asked == [wanted, wanted]
    assert "rank 1 on n0: 5 steps after step 42, 20 ms each" in done.output
    assert "aten::mm             2          4.000" in done.output
    assert "trace: /1.gz" in done.output
    assert not step.profile.exists()
    asked = answering(run, step, monkeypatch)
    told = json.loads(headrace("profile", "--json").output)
    assert [each["operators"][0]["name"] for each in told] == ["aten::mm"]
    assert asked[0].first_step == 45  # what is there is not written over


def test_a_rank_that_cannot_do_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    answering(run, training(run), monkeypatch, error="--lines needs line_profiler")
    with pytest.raises(UserError, match=r"^Rank 0 on n0: --lines needs line_profiler$"):
        headrace("profile", run.run_id)


def test_a_training_that_ends_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    step = training(run)

    def end(_: float) -> None:
        result = StepResult(state=StepState.SUCCEEDED, started_at=1, finished_at=2)
        write_record(step.result, result)

    monkeypatch.setattr(profiles.time, "sleep", end)
    with pytest.raises(StepError, match="ended before all ranks had their profile"):
        headrace("profile", run.run_id)
    assert not step.profile.exists()


def _script(tmp_path: Path) -> Run:
    file = tmp_path / "home" / "train.py"
    file.write_text("")
    overrides = ("~model", f"train.script={file}", "evaluate=null")
    return make_run(overrides=overrides)


def _not_begun(_: Path) -> Run:
    return make_run()


def _ended(_: Path) -> Run:
    run = make_run()
    step = training(run)
    write_record(step.result, StepResult(state=StepState.FAILED, started_at=1, finished_at=2))
    return run


def _starting(_: Path) -> Run:
    run = make_run()
    training(run, progress=Progress(unit="steps"))
    return run


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_script, "Let your own code use torch.profiler itself"),
        (_not_begun, "does not train just now"),
        (_ended, "does not train just now"),
        (_starting, "are starting"),
    ],
)
def test_a_run_that_trains_no_model_just_now_is_refused(
    make: Callable[[Path], Run], why: str, tmp_path: Path
) -> None:
    run = make(tmp_path)
    with pytest.raises(UserError, match=why):
        headrace("profile", run.run_id)


def test_a_rank_that_is_not_there_is_refused() -> None:
    run = make_run()
    training(run)
    with pytest.raises(UserError, match=r"no rank 2\n  The training has ranks 0 to 1\."):
        headrace("profile", run.run_id, "--ranks", "1,2")


@pytest.mark.parametrize(
    ("rate", "total", "wanted"), [(None, None, 41), (10.0, 1000, 61), (100.0, 50, 44)]
)
def test_ranks_begin_together_once_all_have_looked_and_before_the_end(
    rate: float | None, total: float | None, wanted: int
) -> None:
    progress = Progress(done=40, total=total, unit="steps")
    status = StepStatus(state=StepState.RUNNING, progress=progress, rate=rate)
    assert first_step(status, 5) == wanted


def test_too_few_steps_left_are_refused() -> None:
    progress = Progress(done=46, total=50, unit="steps")
    with pytest.raises(UserError, match="After step 46 of 50 there are too few left to record 5"):
        first_step(StepStatus(state=StepState.RUNNING, progress=progress), 5)


def test_lists_of_ranks() -> None:
    assert numbers("3, 0,8-10") == (0, 3, 8, 9, 10)
    for wrong in ("", "a", "-1", "1,,2", "1-b"):
        with pytest.raises(UserError, match="no list of ranks"):
            numbers(wrong)
