"""More and more ranks: which trainings are asked for, what comes of them, and a real one."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import get_args

import pytest
import yaml
from PIL import Image

from benchmarks import scale as bench
from benchmarks.scale import Measured, Mode, ScaleReport, drawn, efficiency, numbers, points_of
from headrace.errors import StepError, UserError
from headrace.recipe.load import BUILT_IN
from headrace.recipe.site import Role
from headrace_bench.machine import machine
from support.training import CODE, write_blobs

HERE = Role(kind="gang", nodes=1, ranks_per_node=2)
QUEUE = Role(kind="gang", backend="slurm", nodes=2, ranks_per_node=4)


def shapes(ranks: str, role: Role, *modes: Mode) -> list[tuple[int, int, int, tuple[Mode, ...]]]:
    found = points_of(numbers(ranks), modes or get_args(Mode), 64, role)
    return [(each.ranks, each.nodes, each.global_batch_size, each.modes) for each in found]


def test_each_training_is_done_once_with_nodes_filled_first() -> None:
    assert shapes("2,1", HERE) == [
        (1, 1, 64, ("strong", "weak")), (2, 1, 64, ("strong",)), (2, 1, 128, ("weak",)),
    ]  # fmt: skip
    assert shapes("4,8,16", QUEUE, "weak") == [
        (4, 1, 64, ("weak",)), (8, 2, 128, ("weak",)), (16, 4, 256, ("weak",)),
    ]  # fmt: skip
    with pytest.raises(UserError, match="6 ranks fill no whole nodes of 4 ranks"):
        points_of((6,), ("weak",), 64, QUEUE)
    for wrong in ("", "0,1", "one", "1,,2"):
        with pytest.raises(UserError, match="Write them as in 1,2,4"):
            numbers(wrong)


def measured() -> tuple[Measured, ...]:
    """Strong scaling loses half at each doubling, weak none; the first point is of both."""
    rates = {(1, 64): 100.0, (2, 64): 100.0, (4, 64): 100.0, (2, 128): 200.0, (4, 256): 400.0}
    return tuple(
        Measured(point=point, run_id="r", samples_per_s=rate, data_wait=0.1, communication=None)
        for point in points_of((1, 2, 4), get_args(Mode), 64, HERE)
        for rate in (rates[point.ranks, point.global_batch_size],)
    )


def test_efficiency_is_what_a_rank_still_gives() -> None:
    assert efficiency(measured(), "strong") == {1: 1.0, 2: 0.5, 4: 0.25}
    assert efficiency(measured(), "weak") == {1: 1.0, 2: 1.0, 4: 1.0}
    report = ScaleReport(
        command="", date="", recipe="r", site="s", machine=machine([]), steps=10,
        measured=measured(),
        efficiency={each: efficiency(measured(), each) for each in get_args(Mode)},
    )  # fmt: skip
    with Image.open(BytesIO(drawn(report))) as image:
        assert min(image.size) > 400


@pytest.fixture
def recipe(headrace_home: Path) -> Path:
    """A recipe of blobs that are packed already, on the laptop with its code allowed."""
    write_blobs(headrace_home / "blobs")
    site = yaml.safe_load((BUILT_IN / "sites" / "laptop.yaml").read_text())
    (headrace_home / "sites").mkdir()
    (headrace_home / "sites" / "here.yaml").write_text(
        yaml.safe_dump(site | {"name": "here", "allowed_code": [str(CODE)]})
    )
    file = headrace_home / "blobs.yaml"
    content = {
        "name": "blobs",
        "dataset": {"name": "blobs", "path": str(headrace_home / "blobs")},
        "code": [str(CODE)],
        "data": {"global_batch_size": 8},
        "model": {
            "_target_": "blob_models.BlobModel", "notes": str(headrace_home), "pause_s": 0.02,
        },
        "trainer": {"accelerator": "cpu"},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.mark.slow
def test_a_recipe_is_trained_and_measured(
    recipe: Path, capsys: pytest.CaptureFixture[str], no_leftover_processes: None
) -> None:
    plot = recipe.with_suffix(".png")
    bench.scale(str(recipe), site="here", ranks="2", steps=40, plot=plot)
    report = ScaleReport.model_validate_json(capsys.readouterr().out)
    (one,) = report.measured
    assert (one.point.ranks, one.point.nodes, one.point.global_batch_size) == (2, 1, 8)
    assert 0 < one.samples_per_s < 500  # each step of 8 samples sleeps for 20 ms
    assert one.communication is not None
    assert report.efficiency == {"strong": {2: 1.0}, "weak": {2: 1.0}}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_too_few_steps_cannot_be_measured(monkeypatch: pytest.MonkeyPatch, recipe: Path) -> None:
    monkeypatch.setattr(bench, "execute", lambda run, tick: None)
    with pytest.raises(StepError, match="told its speed only 0 times in 10 steps"):
        bench.scale(str(recipe), site="here", ranks="1", steps=10)
    with pytest.raises(UserError, match="--mode 'fast' is not known"):
        bench.scale(mode="fast")
