"""The callback that Lightning's Trainer gets in a script, and where it gets none."""

from __future__ import annotations

import atexit
import copy
import pickle
import subprocess
import sys
from importlib.metadata import entry_points

import lightning.pytorch
import pytest
import pytorch_lightning
import torch

from headrace import lightning_reports, script
from headrace.files.atomic import read_record, write_record
from headrace.informing import _failed
from headrace.training.launch_records import LIGHTNING, REPORT, NodeReady, TrainingProgress
from headrace.training.watch_ranks import read_beat
from support.sources import ROOT
from support.training import make_launch

PACKAGES = {"lightning.pytorch": lightning.pytorch, "pytorch_lightning": pytorch_lightning}


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """This process is a rank of a script."""
    launch = make_launch(tmp_path)
    launch.folder.path.mkdir(parents=True)
    write_record(launch.folder.ready(0), NodeReady(launch=launch, dataset="", fingerprint=""))
    monkeypatch.setenv("HEADRACE_LAUNCH", str(launch.folder.ready(0)))
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", launch.run_folder)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delitem(sys.modules, "headrace.training.trainer", raising=False)
    for cached in (script._node, script.reporter_of_rank):
        cached.cache_clear()
    yield launch
    if script.reporter_of_rank.cache_info().currsize and (reports := script.reporter_of_rank()):
        atexit.unregister(reports.write)
    for cached in (script._node, script.reporter_of_rank):
        cached.cache_clear()
    _failed.clear()


def factory(package: str):
    (found,) = (
        each
        for each in entry_points(group=f"{package}.callbacks_factory")
        if each.name == "headrace"
    )
    return found.load()


class FakeTrainer:
    """The attributes of a Trainer that the callback reads."""

    is_global_zero, sanity_checking = True, False
    current_epoch, global_step, accumulate_grad_batches = 0, 7, 2
    estimated_stepping_batches = float("inf")
    callback_metrics = {"val_loss": 0.5}


@pytest.mark.parametrize("package", PACKAGES)
def test_lightning_finds_a_callback_of_its_own_kind(package, launch):
    (callback,) = factory(package)()
    assert isinstance(callback, PACKAGES[package].Callback)
    for again in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert isinstance(again, PACKAGES[package].Callback)


@pytest.mark.parametrize("case", ["no script", "rank 1", "headrace's own Trainer"])
def test_others_get_none(case, launch, monkeypatch):
    if case == "no script":
        monkeypatch.delenv("HEADRACE_LAUNCH")
    if case == "rank 1":
        monkeypatch.setenv("RANK", "1")
    if case == "headrace's own Trainer":
        monkeypatch.setitem(sys.modules, "headrace.training.trainer", sys)
    assert lightning_reports.callbacks() == []


@pytest.mark.parametrize("written", ["", "{", "{}", "/nowhere"])
def test_a_launch_that_is_gone_or_torn_ends_no_training(written, launch, monkeypatch):
    monkeypatch.setenv("HEADRACE_LAUNCH", written)
    for callback in lightning_reports.callbacks():
        callback.on_validation_end(FakeTrainer(), None)
    assert not launch.folder.progress.exists()


def test_a_report_is_no_heartbeat_and_fails_in_silence(launch):
    (callback,) = lightning_reports.callbacks()
    trainer = FakeTrainer()
    callback.on_train_epoch_start(trainer, None)
    callback.on_train_batch_end(trainer, None, {"loss": torch.tensor(0.25)}, None, 0)
    callback.on_validation_end(trainer, None)
    progress = read_record(launch.folder.progress, TrainingProgress)
    assert (progress.source, progress.step, progress.total_steps) == (LIGHTNING, 7, None)
    assert progress.metrics == {"loss": 0.5, "val_loss": 0.5}
    assert read_beat(launch.folder.beat(0)) == (0, None)
    callback.on_validation_end(None, None)
    for odd in ("odd", {"loss": "odd"}, {"loss": torch.ones(2)}, [], None):
        callback.on_train_batch_end(trainer, None, odd, None, 1)
    script.reporter_of_rank().write()
    assert read_record(launch.folder.progress, TrainingProgress).metrics == progress.metrics


def test_a_report_of_the_script_wins(launch):
    (callback,) = lightning_reports.callbacks()
    script.report(3, acc=1.0)
    callback.on_validation_end(FakeTrainer(), None)
    progress = read_record(launch.folder.progress, TrainingProgress)
    assert (progress.source, progress.step, progress.metrics) == (REPORT, 3, {"acc": 1.0})
    assert read_beat(launch.folder.beat(0))[0] == 1


def test_the_factory_imports_nothing_outside_of_scripts():
    code = (
        "import sys; from headrace.lightning_reports import callbacks as f; assert f() == []; "
        "print(*(name for name in sys.modules if name.split('.')[0] in "
        "('lightning', 'torch', 'pydantic', 'headrace')))"
    )
    environment = {"PYTHONPATH": str(ROOT / "pipelines")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["headrace", "headrace.lightning_reports"]
