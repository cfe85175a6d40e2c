"""What a rank does about a profile that is asked for; recording itself is in test_resume.py."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.steps.profile import ProfileRequest, RankProfile
from headrace.training import profiling
from headrace.training.profiling import Profiling, operators


class Lines:
    """Stands in for `line_profiler.LineProfiler`; what it saw of which functions."""

    def __init__(self) -> None:
        self.functions: list[Any] = []
        self.told: list[str] = []

    def add_function(self, function: Any) -> None:
        self.functions.append(function)

    def enable_by_count(self) -> None:
        self.told.append("on")

    def disable_by_count(self) -> None:
        self.told.append("off")

    def print_stats(self, stream: Any) -> None:
        stream.write(f"{[each.__name__ for each in self.functions]} {self.told}")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(profiling, "LOOK_S", 0.0)
    (tmp_path / "step").mkdir()
    return RunFolder(tmp_path / "run")


def trained(run: RunFolder, request: ProfileRequest, *, rank: int = 0, steps: int = 9) -> None:
    """Train so many steps on a rank, two batches each, with a request from the start."""
    step = run.path.parent / "step"
    write_record(StepFolder(step).profile, request)
    launch: Any = SimpleNamespace(step_folder=str(step), run_folder=str(run.path), node_name="n")
    asked = Profiling(launch, rank)
    for batch in range(2, 2 * steps + 2):
        torch.zeros(2).add_(1)
        asked.after_batch(batch // 2)
    asked.end()


def told(run: RunFolder, request: ProfileRequest) -> RankProfile:
    found = read_record(request.answer(run, 0), RankProfile)
    assert found is not None
    return found


def test_steps_are_recorded_with_the_lines_of_functions(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "line_profiler", SimpleNamespace(LineProfiler=Lines))
    names = (f"{__name__}:trained", f"{__name__}:Lines.add_function")
    request = ProfileRequest(first_step=2, num_steps=3, ranks=(0,), lines=names)
    trained(run, request)
    found = told(run, request)
    assert (found.error, found.step, found.num_steps) == ("", 2, 3)
    assert {each.name: each.calls for each in found.operators}["aten::add_"] == 6
    assert found.lines == "['trained', 'add_function'] ['on', 'off']"


def test_what_was_recorded_when_training_ends_is_kept(run: RunFolder) -> None:
    request = ProfileRequest(first_step=2, num_steps=50, ranks=(0,))
    trained(run, request)
    assert (told(run, request).num_steps, told(run, request).error) == (6, "")
    late = ProfileRequest(first_step=9, num_steps=50, ranks=(0,))
    trained(run, late)
    assert told(run, late).error == "Training ended before a whole step"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (f"{__name__}:trained", "--lines needs line_profiler, which a rank cannot import"),
        ("no_such_module:x", "The training has loaded no function 'no_such_module:x'"),
        (f"{__name__}:Lines.x", "The training has loaded no function"),
        ("torch", "The training has loaded no function 'torch'"),
    ],
)
def test_what_cannot_be_done_is_told_and_training_goes_on(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, name: str, error: str
) -> None:
    monkeypatch.setitem(sys.modules, "line_profiler", None)
    request = ProfileRequest(first_step=1, num_steps=1, ranks=(0,), lines=(name,))
    trained(run, request)
    assert told(run, request).error.startswith(error)
    assert "no_such_module" not in sys.modules


def test_others_are_not_asked_and_nobody_twice(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ProfileRequest(first_step=1, num_steps=1, ranks=(1,))
    trained(run, request)
    assert not run.profile.exists()
    answered = request.model_copy(update={"ranks": (0,)})
    write_record(answered.answer(run, 0), RankProfile(rank=0, node="n", step=7))
    trained(run, answered)
    assert told(run, answered).step == 7


def test_a_full_disk_costs_the_profile_and_not_the_training(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", full)
    request = ProfileRequest(first_step=1, num_steps=1, ranks=(0,))
    trained(run, request)
    assert "No space left" in told(run, request).error


def test_operators_are_ordered_by_the_accelerator_then_by_the_processor() -> None:
    def average(key: str, cpu: float, device: float = 0.0) -> Any:
        return SimpleNamespace(
            key=key, count=2, self_cpu_time_total=cpu, self_device_time_total=device,
            self_cpu_memory_usage=3, self_device_memory_usage=4,
        )  # fmt: skip

    found = operators(
        [average("a", 1e6), average("ProfilerStep#1", 9e9), average("b", 2e6), average("c", 1, 5e5)]
    )
    assert [each.name for each in found] == ["c", "b", "a"]
    assert (found[0].device_s, found[1].cpu_s, found[1].calls, found[1].num_bytes) == (0.5, 2, 2, 7)
