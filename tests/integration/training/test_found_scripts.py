"""Programs in the manner of others' code, unchanged: each kind as a trial, sweeps, kills."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from headrace.files.manifest import Manifest
from headrace.steps.context import StepContext
from headrace.training.train_step import train as train_step
from support.command_line import headrace
from support.sources import ROOT
from support.training import ThisProcessFleet, make_context, make_recipe, make_site

FOUND = ROOT / "tests" / "found"
NO_DATA = Manifest(name="", fingerprint="", pack_key="", fields=(), splits={}, shards=())

pytestmark = pytest.mark.slow

_TEXT = (ROOT / "docs" / "how-to" / "bring-what-you-have.md").read_text()
PAGE, _, _ = _TEXT.partition("## Published code")
ROWS = re.findall(r"^\| .+ \| `(\{.+\})` \| (.+) \|$", PAGE, re.MULTILINE)
"""What a recipe holds below `train` for each kind, and where that was tried, as the page says."""

IN_CI = {
    train.get("script") or train.get("module") or train["command"][-1]: train
    for train in (yaml.safe_load(text) for text, tried in ROWS if tried.startswith("CI"))
}
"""By the program's name."""

DDP = IN_CI.pop("snapshot_ddp.py")


@pytest.fixture
def project(tmp_path: Path, headrace_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the programs, which is the working folder; nothing may be written into it."""
    folder = tmp_path / "project"
    shutil.copytree(FOUND, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    monkeypatch.setenv("PATH", path)  # of `python` in a shell script
    return folder


def _trials(home: Path) -> list[Path]:
    (run,) = (home / "runs").iterdir()
    return sorted((run / "trials").iterdir())


def _sweep(project: Path, train: dict[str, Any], *words: str, **suite: Any) -> None:
    code = ["."]  # for a module that only a trial names
    recipe = {"name": "found", "seed": 3, "code": code, "train": train, "suite": suite}
    (project / "r.yaml").write_text(yaml.safe_dump(recipe))
    done = headrace("sweep", str(project / "r.yaml"), *words, "--site", "laptop")
    assert done.exit_code == 0, done.output
    assert "failed" not in done.output


def _files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_each_kind_runs_unchanged_in_a_folder_of_its_own(
    project, headrace_home, no_leftover_processes
):
    before = _files(project)
    starts = {"script": None, "module": None, "command": []}
    points = [
        {f"train.{key}": value for key, value in {**starts, **train}.items()}
        for train in IN_CI.values()
    ]
    _sweep(project, {"script": "argparse_sklearn.py"}, points=points)
    assert _files(project) - before == {"r.yaml"}
    work = dict(zip(IN_CI, (trial / "work" for trial in _trials(headrace_home)), strict=True))

    model = json.loads((work["argparse_sklearn.py"] / "model.json").read_text())
    assert model["options"] == {"penalty": 0.5, "seed": 3}
    assert np.load(work["fire_ridge.py"].parent / "own" / "w.npy").shape == (4,)
    config = json.loads((work["tyro_config.py"] / "config.json").read_text())
    assert config["opt"] == {"kind": "momentum", "lr": 0.01, "betas": [0.9, 0.999]}
    assert (config["layers"], config["bias"], config["steps"]) == ([4, 2], False, 7)
    (scores,) = work["hydra_project/train.py"].glob("outputs/*/*/scores.json")
    assert len(json.loads(scores.read_text())) == 3
    config = yaml.safe_load((scores.parent / ".hydra" / "config.yaml").read_text())
    assert (config["model"]["n_neighbors"], config["title"]) == (3, "a b, c=d")
    assert config["new"] is None
    (version,) = (work["lightning_cli.py"] / "lightning_logs").iterdir()
    assert [each.name for each in version.glob("checkpoints/*")] == ["epoch=0-step=16.ckpt"]
    for folder in (work["pkg.train"], work["run.sh"].parent):
        assert np.load(folder / "fit.npy") == pytest.approx([1.0, -2.0, 0.5])


def test_the_programs_of_the_page_are_there():
    words = [word for text, _ in ROWS for word in re.findall(r"[\w/]+\.(?:py|sh)\b", text)]
    assert len(ROWS) == 14
    assert [word for word in words if not (FOUND / word).is_file()] == []


def test_arguments_are_swept_on_the_grid(project, headrace_home):
    hydra = {"script": "hydra_project/train.py", "args": {"model": "nearest"}}
    _sweep(project, hydra, "args.model.n_neighbors=3,5")
    found = set()
    for trial in _trials(headrace_home):
        (file,) = trial.glob("work/outputs/*/*/.hydra/config.yaml")
        model = yaml.safe_load(file.read_text())["model"]
        found.add(model["n_neighbors"])
    assert found == {3, 5}


def test_arguments_are_searched_by_optuna(project, headrace_home):
    _sweep(
        project,
        {"script": "tyro_config.py", "args": {"--steps": 30}},
        "args.--opt.lr=tag(log, interval(1e-3, 1e-1))",
        "args.--opt.kind=sgd,momentum",
        "--trials",
        "3",
        objectives=[{"metric": "loss"}],
    )
    configs = [
        json.loads((trial / "work" / "config.json").read_text()) for trial in _trials(headrace_home)
    ]
    assert len({each["opt"]["lr"] for each in configs}) == len(configs) == 3
    assert all(1e-3 <= each["opt"]["lr"] <= 1e-1 for each in configs)
    assert {each["steps"] for each in configs} == {30}
    points = json.loads(headrace("results", "--json").stdout)["points"]
    assert {each["values"]["args.--opt.lr"] for each in points} == {
        each["opt"]["lr"] for each in configs
    }
    assert all(each["spread"]["mean"] > 0 for each in points)


KILLING = """
import os, pathlib, signal, torch

save = torch.save

def killing(state, path):
    save(state, path)
    marker = pathlib.Path(os.environ["KILLED_BEFORE"])
    if state["EPOCHS_RUN"] == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)

torch.save = killing
"""
"""`sitecustomize`: kills a rank once, as soon as it has written its snapshot of two epochs."""


def _context(folder: Path, ranks: int, **keys: Any) -> StepContext:
    recipe = make_recipe({"dataset": None, "seed": 3, **keys})
    return make_context(folder, recipe, make_site(folder, ranks=ranks, is_fenced=False))


def test_a_script_of_torchrun_that_is_killed_goes_on_from_its_own_snapshot(
    tmp_path, monkeypatch, no_leftover_processes
):
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(KILLING)
    monkeypatch.setenv("KILLED_BEFORE", str(tmp_path / "killed"))
    ddp = {**DDP, "script": str(FOUND / DDP["script"])}
    context = _context(tmp_path, 2, train=ddp, code=[str(tmp_path / "hook")])
    outputs = train_step(context, ThisProcessFleet(), "", NO_DATA)
    assert (outputs["world_size"], "problem" in outputs) == (2, False)
    assert outputs["restarts"] >= 1  # on a crowded machine ranks may also fail to meet
    for rank in range(2):
        log = (context.folder.logs / f"rank-{rank}.log").read_text()
        assert "Resuming training from snapshot at Epoch 2\n" in log
        done = re.findall(r"Epoch (\d) \|", log)
        assert (done[-2:], done.count("0")) == (["2", "3"], 1)
