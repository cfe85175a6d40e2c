"""The GPU check tells the truth, also where there is no GPU: whatever fails is a failed row."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headrace_bench import gpu_check, gpu_data, gpu_trainings
from headrace_bench.gpu_check import PARTS, GpuPart, check, devices_row, known_parts, run_part
from headrace_bench.gpu_data import _same_losses
from headrace_bench.gpu_rows import GpuReport, GpuRow, judged
from headrace_bench.gpu_trainings import differences, resumed, speed
from headrace_bench.observed_model import Observed
from headrace_bench.train import TrainTimes
from support.command_line import headrace, refusal

TESTS = Path(__file__).parents[1]
PLAIN = Observed(
    device="cuda", world_size=1, backend="", output_dtype="torch.float32", is_compiled=False,
    is_channels_last=False, is_sharded=False, has_sync_batchnorm=False, is_same_on_all_ranks=True,
    losses=(2.4, 1.0, 0.1),
)  # fmt: skip
NO_CUDA = "PyTorch 2 has no CUDA device"


@pytest.fixture(autouse=True)
def _parts_are_found(monkeypatch: pytest.MonkeyPatch, no_leftover_processes: None) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def part(name: str, *, needs_cuda: bool = False, limit_s: float = 120.0) -> GpuPart:
    target = f"support.gpu_parts:{name}"
    return GpuPart(name=name, target=target, limit_s=limit_s, needs_cuda=needs_cuda)


def found(*parts: GpuPart, folder: Path, lacks: str = "", limit_s: float = 400.0) -> list[GpuRow]:
    return list(check(parts, folder, limit_s, lacks, lambda _: None))


def test_whatever_ends_a_part_is_a_failed_row_and_the_others_run(tmp_path):
    parts = [part(name) for name in ("raises", "crashes", "leaves", "too_slow", "well")]
    rows = found(*parts, folder=tmp_path)
    told = {row.name: (row.outcome, row.told) for row in rows[:3]}
    assert told["raises"] == ("failed", "RuntimeError: CUDA error: an illegal memory access")
    assert told["crashes"][0] == "failed"
    assert told["crashes"][1].startswith("signal SIGBUS")
    assert told["leaves"] == ("failed", "it has no result")
    assert [(row.name, row.outcome, row.figure) for row in rows[3:]] == [
        ("rate", "failed", 0.97), ("rate", "ok", 0.99), ("size", "measured", 3.0),
    ]  # fmt: skip
    assert rows[3].told == "0.97 of it; goal: at least 0.98"
    assert "illegal memory access" in (tmp_path / "raises" / "log.txt").read_text()


@pytest.mark.nightly
def test_a_part_that_hangs_is_ended_by_its_limit(tmp_path):
    (row,) = found(part("hangs", limit_s=5.0), folder=tmp_path)
    assert (row.name, row.outcome) == ("hangs", "failed")
    assert row.told.startswith("ended by its time limit of 5 s; last: ")


@pytest.mark.nightly
def test_no_part_begins_after_the_time_of_all(tmp_path):
    rows = found(part("hangs"), part("well"), folder=tmp_path, limit_s=5.0)
    assert "limit of 5 s" in rows[0].told
    assert (rows[1].outcome, rows[1].told) == (
        "failed", "not begun: the 5 s of the whole check are over",
    )  # fmt: skip
    assert not (tmp_path / "well").exists()


def test_what_needs_cuda_is_skipped_with_the_reason(tmp_path):
    rows = found(part("raises", needs_cuda=True), part("well"), folder=tmp_path, lacks=NO_CUDA)
    assert [row.outcome for row in rows] == ["skipped", "ok", "measured"]
    assert (rows[0].name, rows[0].told) == ("raises", NO_CUDA)


@pytest.mark.parametrize(("name", "code"), [("well", 0), ("too_slow", 1), ("raises", 1)])
def test_the_command_gives_a_table_a_file_and_an_exit_code(tmp_path, monkeypatch, name, code):
    parts = (part(name), part("crashes", needs_cuda=True))
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    none = GpuRow(name="GPUs", outcome="skipped", told="none")
    monkeypatch.setattr(gpu_check, "look", lambda: (NO_CUDA, none))
    file = tmp_path / "new" / "check.json"
    done = headrace("bench", "gpu", "--output", str(file))
    assert done.exit_code == code, done.output
    told = json.loads(file.read_text())
    assert told.pop("has_passed") is (code == 0)
    report = GpuReport.model_validate(told)
    assert [row.outcome for row in report.rows if row.name == "crashes"] == ["skipped"]
    for row in report.rows:
        assert row.name in done.stdout
        assert row.outcome in done.stdout
        assert row.told in done.stdout


def test_parts_are_chosen_by_name():
    assert [each.name for each in known_parts("fsdp2,nccl")] == ["nccl", "fsdp2"]
    assert known_parts(None) == PARTS
    assert "gpu-tier, nccl" in refusal("bench", "gpu", "--only", "nccl,cuda").hint


def test_no_part_needs_what_only_tests_need():
    """A GPU machine has neither pytest nor Airflow; the parts are imported by name there."""
    code = (
        "import sys\n"
        "from pkgutil import resolve_name\n"
        "missing = ('pytest', '_pytest', 'airflow', 'moto', 'hypothesis')\n"
        "sys.modules.update(dict.fromkeys(missing))\n"
        "from headrace_bench.gpu_check import PARTS\n"
        "print(*(each.name for each in PARTS if callable(resolve_name(each.target))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [each.name for each in PARTS], done.stderr


def test_the_check_runs_without_an_installed_command_or_a_set_up_checkout(tmp_path):
    figures = tmp_path / "check.json"
    arguments = f"ARGS=--only nccl --output {figures}"
    python = Path(sys.executable).parent
    path = {"PATH": f"{python}:{os.environ['PATH']}"}
    path["PYTHONPATH"] = str(Path(gpu_check.__file__).parents[1])
    command = ["make", "-C", str(TESTS.parent), "gpu-check", f"BIN={tmp_path}", arguments]
    env = {**os.environ, **path}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "nccl" in done.stdout
    assert figures.exists()


@pytest.mark.parametrize(
    ("gpus", "num_seen", "outcome"),
    [
        ([], 0, "skipped"),
        (["GPU-a", "GPU-b"], 2, "ok"),
        (["GPU-a", "GPU-b"], 1, "failed"),
        (["GPU-a"], 0, "failed"),
        (["MIG-a", "MIG-b"], 1, "ok"),
        (["MIG-a", "MIG-b"], 0, "failed"),
    ],
)
def test_gpus_that_pytorch_does_not_see_are_no_skip(gpus, num_seen, outcome):
    assert devices_row(gpus, num_seen, "PyTorch 2").outcome == outcome


@pytest.mark.parametrize(
    ("figure", "goals", "outcome"),
    [
        (0.98, {"at_least": 0.98}, "ok"),
        (0.979, {"at_least": 0.98}, "failed"),
        (1.3, {"at_most": 1.3}, "ok"),
        (1.31, {"at_most": 1.3}, "failed"),
        (math.nan, {"at_least": 0.98}, "failed"),
        (math.nan, {"at_most": 1.3}, "failed"),
        (0.5, {}, "measured"),
    ],
)
def test_a_figure_is_held_against_its_goal(figure, goals, outcome):
    assert judged("x", figure, "told", **goals).outcome == outcome


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, "output_dtype is torch.float32, not torch.bfloat16"),
        ({"output_dtype": "torch.bfloat16"}, ""),
        ({"output_dtype": "torch.bfloat16", "device": "cpu"}, "device is cpu, not cuda"),
        ({"output_dtype": "torch.bfloat16", "losses": (2.4, 0.2)}, "the last loss is 0.2"),
        ({"output_dtype": "torch.bfloat16", "losses": (0.1, 0.1)}, "it learns nothing"),
        ({"output_dtype": "torch.bfloat16", "losses": (2.4, math.nan)}, "it learns nothing"),
        ({"output_dtype": "torch.bfloat16", "is_same_on_all_ranks": False}, "different weights"),
    ],
)
def test_a_key_that_does_not_do_what_it_says_is_told(changes, problem):
    told = differences(
        PLAIN, PLAIN.model_copy(update=changes), {"output_dtype": "torch.bfloat16"}, 0.05
    )
    assert problem in "; ".join(told)
    assert bool(told) == bool(problem)


def test_a_resume_is_judged_by_the_bits_and_by_the_kill():
    left, killed = {"weights_xxh3": "a", "restarts": 0}, {"weights_xxh3": "a", "restarts": 1}
    assert resumed(left, killed, "cuda").outcome == "ok"
    assert resumed(left, left, "cuda").told == "no rank was killed"
    other = resumed(left, {**killed, "weights_xxh3": "b"}, "cuda")
    assert (other.outcome, "b, not a" in other.told) == ("failed", True)


def test_speed_is_judged_on_gpus_only(tmp_path, monkeypatch):
    def timed(options, tick):
        plain = TrainTimes(0.0, 10.0, 11.0, 21.0)
        slower = TrainTimes(0.0, 14.0, 15.0, 26.0, start_wait_s=3.0, wait_s=0.55)
        return {"torchrun": [plain], "headrace": [slower]}

    monkeypatch.setattr(gpu_trainings, "time_trainings", timed)
    share, used, waited, begun = speed(tmp_path)
    figures = [each.figure for each in (share, used, waited, begun)]
    assert figures == pytest.approx([10 / 11, 0.95, 3.0, 1.4])
    on_gpu = torch.cuda.is_available()
    wanted = {"failed"} if on_gpu else {"measured"}
    assert {share.outcome, used.outcome, begun.outcome} == wanted
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    outcomes = [row.outcome for row in speed(tmp_path)]
    assert outcomes == ["failed", "failed", "measured", "failed"]


def test_a_wait_at_the_start_is_not_one_of_the_steady_state():
    assert TrainTimes(0.0, 14.0, 15.0, 25.0, start_wait_s=9.0, wait_s=0.1).data_wait == 0.01


SMALL = ("copies", "preflight", "two-ranks", "decode", "workers", "gpu-decode", "gpu-tier")
GPU_ONLY = {
    "two-ranks-batchnorm": "PyTorch does it on GPUs only",
    "gpu-decode": "the CPU: no GPU is in use",
    "gpu-tier": "not used: no GPU is in use",
}


def run_named(name: str, folder: Path) -> dict[str, GpuRow]:
    (chosen,) = known_parts(name)
    assert not chosen.needs_cuda
    rows = run_part(replace(chosen, limit_s=600.0), folder / name, 600.0)
    return {row.name: row for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_parts_of_data_and_ranks_run_on_a_cpu(tmp_path, name):
    rows = run_named(name, tmp_path)
    assert rows
    for row in rows.values():
        if row.name in GPU_ONLY and not torch.cuda.is_available():
            assert (row.outcome, row.told) == ("skipped", GPU_ONLY[row.name])
        else:
            assert row.outcome in {"ok", "measured"}, row


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["photos", "trials", "probe"])
def test_long_parts_run_on_a_cpu(tmp_path, name):
    row = run_named(name, tmp_path)[name]
    assert row.outcome in {"ok", "measured"}, row


def test_other_losses_of_two_ranks_fail():
    assert _same_losses("x", [2.0, 1.0], [2.0, 1.0 + 1e-9]).outcome == "ok"
    assert _same_losses("x", [2.0, 1.0], [2.0, 1.01]).outcome == "failed"
    assert _same_losses("x", [2.0, math.nan], [2.0, math.nan]).outcome == "failed"


def test_damaged_copies_of_batches_fail(tmp_path, monkeypatch):
    batch = (torch.zeros(8, 224, 224, 3, dtype=torch.uint8), torch.arange(8))
    monkeypatch.setattr(gpu_data, "loader_epoch", lambda *_: lambda: iter([batch] * 16))
    row = gpu_data.batches(tmp_path, torch.device("cpu"))
    assert (row.outcome, row.told) == ("failed", "16 batches differ from their samples")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["fsdp2", "resume"])
def test_parts_train_by_headrace_also_on_a_cpu(tmp_path, name):
    (chosen,) = known_parts(name)
    (row,) = run_part(replace(chosen, limit_s=600.0), tmp_path / name, 600.0)
    assert row.outcome == "ok", row.told
