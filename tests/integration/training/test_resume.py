"""Training that is killed and goes on gives the weights of one that was left alone."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.content import read_checkpoint
from headrace.checkpoints.files import best_of
from headrace.checkpoints.weights import weights_hash
from headrace.clusters.lease_records import HostRecord
from headrace.errors import (
    LeaseEndsError,
    LeaseTakenError,
    StepCancelledError,
    UserError,
    WorkerLostError,
)
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import RunFolder, checkpoint_name
from headrace.processes.identity import ProcessIdentity
from headrace.shards.dataset import ShardedDataset
from headrace.steps.context import StepContext
from headrace.steps.history import read_history
from headrace.steps.mailbox import request_cancel
from headrace.training import gang
from headrace.training.checkpoint_copies import CheckpointCopies
from headrace.training.train_step import run
from support.training import (
    ThisProcessFleet,
    blob_step,
    events_of,
    train_here,
    trained,
    write_blobs,
)
from support.waiting import wait_until

EPOCHS = 4
STEPS_PER_EPOCH = 10
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("blobs") / "dataset"
    write_blobs(folder, train_samples=STEPS_PER_EPOCH * 8 + 3)
    return folder


def start(
    folder: Path,
    *,
    nodes: int = 1,
    ranks: int = 2,
    data: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    **model: Any,
) -> StepContext:
    """A step in `folder`; another call is another attempt of the same run."""
    allowed = [f"lightning.pytorch.loggers.{name}" for name in ("MLFlowLogger", "WandbLogger")]
    best = {"monitor": "val/accuracy", "monitor_mode": "max"}
    return blob_step(
        folder,
        model,
        site={"nodes": nodes, "ranks": ranks, "allowed_targets": allowed},
        data=data or {},
        trainer={"max_epochs": EPOCHS, "keep_checkpoints": 2, **best, **(trainer or {})},
        train={"max_restarts": 3, **(train or {})},
        evaluate={"split": "val", "checkpoint": 40, "also_checkpoints": [20, 16]},
    )


@pytest.fixture(scope="module")
def undisturbed(dataset, tmp_path_factory) -> dict[str, Any]:
    return train_here(start(tmp_path_factory.mktemp("undisturbed")), dataset)


def accuracy(checkpoint: Path, samples: ShardedDataset) -> float:
    """Share of right answers of the model of `blob_models`."""
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    everything = np.arange(len(samples))
    array = torch.from_numpy(samples.gather("array", everything))
    hidden = (array @ weights["first.weight"].T + weights["first.bias"]).relu()
    scores = hidden @ weights["second.weight"].T + weights["second.bias"]
    return float((scores.argmax(1).numpy() == samples.gather("label", everything)).mean())


def assert_each_once(folder: Path) -> None:
    """In every epoch, each sample that was trained counts once."""
    for epoch in range(EPOCHS):
        steps = range(epoch * STEPS_PER_EPOCH + 1, (epoch + 1) * STEPS_PER_EPOCH + 1)
        counts = Counter(
            sample
            for (_, step), samples in trained(folder).items()
            if step in steps
            for sample in samples
        )
        assert set(counts.values()) == {1}
        assert len(counts) == STEPS_PER_EPOCH * 8


def assert_one_history(killed: RunFolder, undisturbed: RunFolder) -> None:
    """Each part of the training has its rows once, and the metrics of one left alone."""
    found = read_history(killed)
    assert list(dict.fromkeys(row.step for row in found.starts)) == [0, 15, 30]
    steps = [(row.step, bool(row.metrics)) for row in found.rows]
    assert steps == sorted(set(steps))
    validated = [STEPS_PER_EPOCH * (epoch + 1) for epoch in range(EPOCHS)]
    metrics = {row.step: row.metrics for row in found.metrics}
    assert list(metrics) == validated
    assert metrics == {row.step: row.metrics for row in read_history(undisturbed).metrics}
    assert all(row.loss is not None for row in found.rows)
    assert {"forward", "backward", "communication", "optimizer"} < set(found.rows[-1].parts)
    assert all(sum(row.parts.values(), row.data_wait or 0.0) < 1.01 for row in found.rows)


def test_an_undisturbed_training_is_reported_whole(undisturbed, dataset):
    """And its ranks have imported nothing that they do not need."""
    assert undisturbed["epochs"] == EPOCHS
    assert undisturbed["steps"] == EPOCHS * STEPS_PER_EPOCH
    assert undisturbed["world_size"] == 2
    assert undisturbed["restarts"] == 0
    # ranks validate on 5 and 6 samples
    assert undisturbed["metrics"]["val/accuracy"] == pytest.approx(
        accuracy(Path(undisturbed["checkpoint"]), ShardedDataset(dataset, "val"))
    )
    assert 0 < undisturbed["data_wait"] < 1
    assert Path(undisturbed["checkpoint"]).name == checkpoints.FINAL
    notes = Path(undisturbed["checkpoint"]).parents[3] / "notes" / "rank-1.jsonl"
    assert json.loads(notes.read_text().splitlines()[-1])["modules"] == []


def test_the_weights_with_the_best_metric_are_kept(undisturbed, dataset):
    path = Path(undisturbed["best_checkpoint"])
    best = best_of(path.parent)
    assert path.name == best.file == checkpoints.best_name_of(best.step)
    assert best.step == (best.epoch + 1) * STEPS_PER_EPOCH
    validation = ShardedDataset(dataset, "val")
    assert best.value == pytest.approx(accuracy(path, validation))
    assert best.value >= accuracy(Path(undisturbed["checkpoint"]), validation)
    assert "optimizer_states" not in read_checkpoint(path)


def test_training_begins_with_the_weights_of_another(undisturbed, dataset, tmp_path):
    context = start(tmp_path, train={"init_from": undisturbed["checkpoint"]})
    recipe = context.recipe
    trainer = recipe.trainer.model_copy(update={"max_steps": 1})
    once = recipe.model_copy(update={"trainer": trainer, "evaluate": None})
    write_record(context.run_folder.recipe, once)
    outputs = train_here(replace(context, recipe=once), dataset)
    assert outputs["steps"] == 1
    given = read_checkpoint(Path(undisturbed["checkpoint"]))["state_dict"]
    after = read_checkpoint(Path(outputs["checkpoint"]))["state_dict"]
    for name, value in given.items():  # other weights of this size differ by more
        assert 0 < (after[name] - value).abs().max() < 0.05, name


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # by MLflow
def test_killed_ranks_are_restarted_and_leave_no_trace_in_the_weights(
    undisturbed, dataset, tmp_path, no_leftover_processes, monkeypatch
):
    """Pains 30, 34: deaths in mid-epoch and just after a checkpoint at the end of an epoch.

    Here each rank has a node of its own; the ranks of the other node are stopped, too. All launches
    log to one run of MLflow and one of Weights & Biases.
    """
    monkeypatch.setenv("WANDB_MODE", "offline")
    loggers = ("csv", "tensorboard", "mlflow", "wandb")
    context = start(
        tmp_path, nodes=2, ranks=1, dies=[[1, 17], [0, 31]], trainer={"loggers": loggers}
    )
    outputs = train_here(context, dataset, ThisProcessFleet(2))
    assert outputs["weights_xxh3"] == undisturbed["weights_xxh3"]
    assert outputs["metrics"] == undisturbed["metrics"]
    assert "loss" in outputs["metrics"]
    resumed = [Path(each["resume"]).name for each in events_of(context, "launch") if each["resume"]]
    whys = [each["why"] for each in events_of(context, "restart")]
    assert outputs["restarts"] == len(whys)
    # on a crowded machine ranks may also fail to meet, which is one more restart
    killed = {
        why.split(":")[0]: name for why, name in zip(whys, resumed, strict=True) if "SIGKILL" in why
    }
    assert killed == {
        "Rank 1 on node-1": "step-000000015.ckpt",
        "Rank 0 on node-0": "step-000000030.ckpt",
    }, whys
    assert_each_once(tmp_path)
    for logger, file in (("csv", "metrics.csv"), ("tensorboard", "events.out.*")):
        left = sorted(context.run_folder.tensorboard.glob(f"{logger}/version_*/{file}"))
        assert len(left) >= 3, left  # what dead launches wrote is there, too
    assert_one_external_run(context.run_folder.tensorboard)
    assert_one_history(context.run_folder, RunFolder(Path(undisturbed["checkpoint"]).parents[1]))
    kept = sorted(path.name for path in context.run_folder.checkpoints.iterdir())
    best = Path(undisturbed["best_checkpoint"])
    steps = ["step-000000036.ckpt", "step-000000039.ckpt"]
    evaluated = [f"kept-{step:09d}.ckpt" for step in (16, 20, 40)]
    assert kept == [best.name, "best.json", "final.ckpt", "final.json", *evaluated, *steps]
    for name in (best.name, *evaluated):
        again = read_checkpoint(context.run_folder.checkpoints / name)
        alone = read_checkpoint(best.with_name(name))
        assert weights_hash(again["state_dict"]) == weights_hash(alone["state_dict"])
        assert "optimizer_states" not in again
    last = read_checkpoint(best.with_name("kept-000000040.ckpt"))["state_dict"]
    assert weights_hash(last) == undisturbed["weights_xxh3"]


def assert_one_external_run(folder: Path) -> None:
    """In MLflow with the metrics of all launches; in Weights & Biases each adds to the same id."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["trainer.max_epochs"] == str(EPOCHS)
    logged = client.get_metric_history(found.info.run_id, "val/accuracy")
    assert {each.step for each in logged} == {9, 19, 29, 39}
    parts = sorted(folder.glob("wandb/offline-run-*-run/run-run.wandb"))
    assert len(parts) >= 3, parts
    assert b"headrace.dataset" in parts[-1].read_bytes()  # of killed ones some may be missing


def test_orders_and_random_samples_are_repeated_by_a_resume(
    dataset, tmp_path, no_leftover_processes
):
    """Pains 30: windows of shards, batches read ahead, noise that depends on the place only.

    And what tries learning rates out does so once, at the start, and leaves no trace.
    """
    data = {
        "shuffle_window": 1,
        "prefetch": 3,
        "sample_transforms": [{"_target_": "blob_samples.Jitter", "std": 0.1}],
    }
    whole = train_here(start(tmp_path / "whole", data=data), dataset)
    own = data | {"collate": {"_target_": "blob_samples.Stacked"}}  # as headrace would
    # its checkpoints are written while it goes on, and it is resumed from one of these
    finder = {"_target_": "blob_callbacks.TellingFinder", "num_training_steps": 12}
    torn = start(
        tmp_path / "broken",
        data=own,
        dies=[[1, 17]],
        trainer={
            "async_checkpoints": True,
            "callbacks": [{**finder, "update_attr": False, "notes": str(tmp_path / "tried")}],
        },
    )
    broken = train_here(torn, dataset)
    assert broken["restarts"] >= 1
    ((tried, low, high),) = map(str.split, (tmp_path / "tried").read_text().splitlines())
    assert int(tried) == 12
    assert float(low) < float(high)
    assert broken["weights_xxh3"] == whole["weights_xxh3"]
    assert_each_once(tmp_path / "broken")
    first = [trained(tmp_path / "whole")[f"rank-{rank}.jsonl", 1] for rank in range(2)]
    assert len({sample // 50 for samples in first for sample in samples}) == 1


def test_training_goes_on_with_fewer_ranks_and_with_more(dataset, tmp_path, no_leftover_processes):
    """Pains 30: the position is one in the global order, whatever the world size.

    Of a Dataset of the user's, as of any.
    """
    data = {"dataset": {"_target_": "blob_samples.Backwards"}}
    dies, never = [[0, 17], [0, 28]], {"max_restarts": 0}
    with pytest.raises(WorkerLostError, match="after 0 restarts"):
        train_here(start(tmp_path, data=data, dies=dies, train=never), dataset)
    notes = tmp_path / "notes" / "rank-1.jsonl"
    # what rank 1 did after the checkpoint of step 15 is lost, and done again by rank 0
    lines = notes.read_text().splitlines()
    notes.write_text("".join(f"{line}\n" for line in lines if json.loads(line)["step"] <= 15))
    with pytest.raises(WorkerLostError, match="after 0 restarts"):
        train_here(start(tmp_path, data=data, dies=dies, train=never, ranks=1), dataset)
    assert checkpoints.progress_in(tmp_path / "runs" / "run" / "checkpoints") == 27
    changed = start(tmp_path, data=data, ranks=1, width=8)
    with pytest.raises(
        UserError, match=r"BlobModel is not the model of .*: first\.weight is"
    ) as told:
        train_here(changed, dataset)
    assert "second.weight is (3, 16) there and (3, 8) here" in told.value.what
    assert "init_strict: false" in told.value.hint
    last = start(tmp_path, data=data, trainer={"checkpoint_target": str(tmp_path / "kept")})
    with CheckpointCopies(last) as copies:
        copies.finish()
    shutil.rmtree(last.run_folder.checkpoints)
    outputs = train_here(last, dataset)
    assert outputs["world_size"] == 2
    assert Path(events_of(last, "launch")[0]["resume"]).name == checkpoint_name(27)
    assert (tmp_path / "kept/run" / checkpoints.FINAL).exists()
    assert outputs["steps"] == EPOCHS * STEPS_PER_EPOCH
    assert_each_once(tmp_path)


def test_a_cancelled_training_ends_at_once_and_the_next_attempt_goes_on(
    undisturbed, dataset, tmp_path, no_leftover_processes
):
    """The newest checkpoint is damaged meanwhile: the one before it serves."""
    first = start(tmp_path, pause_s=0.05)
    failure: list[BaseException] = []

    def attempt() -> None:
        try:
            train_here(first, dataset)
        except StepCancelledError as error:
            failure.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    folder = first.run_folder.checkpoints
    wait_until(lambda: len(checkpoints.newest_first(folder)) >= 2, 120, "two checkpoints")
    pids = {
        json.loads(notes.read_text().splitlines()[0])["pid"]
        for notes in (tmp_path / "notes").glob("rank-*")
    }
    request_cancel(first.folder, "a test")
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), 90, "the ranks to end")
    thread.join()
    assert "a test" in str(failure[0])

    newest, before = checkpoints.newest_first(folder)[:2]
    content = newest.read_bytes()
    newest.write_bytes(content[: len(content) // 2])
    second = start(tmp_path, pause_s=0.05)
    outputs = train_here(second, dataset)
    assert outputs["weights_xxh3"] == undisturbed["weights_xxh3"]
    assert [each["resume"] for each in events_of(second, "launch")] == [str(before)]
    told = events_of(second, "damaged_checkpoint")
    assert [each["checkpoint"] for each in told] == [str(newest)]
    assert "BadZipFile" in told[0]["why"]


def test_training_stops_in_time_with_a_checkpoint_and_goes_on_elsewhere(
    undisturbed, dataset, tmp_path, monkeypatch, no_leftover_processes
):
    """Pains 18, 23, 31: a node has had notice; then a lease ends by the clock.

    All ranks stop after the same step, none of which is lost, also where checkpoints are written
    in the background.
    """
    noticed = start(tmp_path, trainer={"async_checkpoints": True})
    write_text(noticed.lease_folder.notice, "spot notice for i-1")
    with pytest.raises(LeaseTakenError, match=r"stopped after step 1, .*: spot notice for i-1"):
        train_here(noticed, dataset)
    assert {step for _, step in trained(tmp_path)} == {1}
    assert checkpoints.progress_in(noticed.run_folder.checkpoints) == 1

    ending = start(tmp_path)
    host = HostRecord(process=ProcessIdentity.of(), ends_at=time.time() + 3600)
    write_record(ending.lease_folder.host, host)
    with monkeypatch.context() as patched:
        patched.setattr(gang, "_STOPPING_S", 3600.0)  # so the ranks' time is over at once
        with pytest.raises(LeaseEndsError, match="stopped after step 2, just before"):
            train_here(ending, dataset)
    assert train_here(start(tmp_path), dataset)["weights_xxh3"] == undisturbed["weights_xxh3"]
    assert_each_once(tmp_path)


def test_a_completed_training_is_collected_not_repeated(undisturbed, dataset, tmp_path):
    """The second attempt has no lease, so it could not train."""
    context = start(Path(undisturbed["checkpoint"]).parents[3])
    context.spec.inputs["dataset"] = str(dataset)
    assert run(context) == undisturbed
