"""The stage and evaluate steps on a real lease of two nodes."""

import csv
import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from pyarrow import parquet
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.local import marked
from headrace.clusters.node_calls import OneNode
from headrace.data.dataset import SampleReader
from headrace.data.transforms import ScaleToUnit
from headrace.errors import LeaseEndsError
from headrace.evaluation.evaluate_step import evaluate, own_predictor
from headrace.examples.digits_model import DigitsClassifier
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder
from headrace.informing import failures_of
from headrace.leases import run_leases
from headrace.recipe.base import Target
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site, Tier
from headrace.shards.dataset import ShardedDataset
from headrace.states import FailureClass, LeaseState, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult
from headrace.steps.run import open_context, run_step
from support.checkpoints import write_in_parts
from support.factories import demo_lease, step_spec
from support.rank_processes import drivers_of, worker_of
from support.shards import write_dataset
from support.waiting import wait_until

pytestmark = pytest.mark.slow

NUM_TEST, NUM_TRAIN = 230, 60


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def site(home) -> Site:
    role = Role(kind="gang", nodes=2, lifetime=600)
    tiers = (
        Tier(name="small", folder=str(home / "small"), budget=1000),
        Tier(name="disk", folder=str(home / "tier"), reserve=0),
    )
    roles = {"gpu": role, "cpu": role}
    code = (str(home / "code"),)
    return Site(name="test", folder=str(home), roles=roles, tiers=tiers, allowed_code=code)


@pytest.fixture(scope="module")
def lease(home, site):
    folder = LeaseFolder(home / "leases" / "test")
    spec = demo_lease(
        "test", key="test/gpu", run_id="test", role=site.roles["gpu"], preload=run_leases.PRELOAD
    )
    lease_client.start(folder, spec)
    try:
        wait_until(
            lambda: LeaseFiles.read(folder).state(60) is not LeaseState.STARTING,
            90,
            "the lease to be ready",
        )
        assert LeaseFiles.read(folder).state(60) is LeaseState.READY, LeaseFiles.read(
            folder
        ).why_ended
        yield folder
    finally:
        lease_client.end(folder, 10)


@pytest.fixture(scope="module")
def dataset(home) -> Path:
    random = np.random.default_rng(0)
    total = NUM_TEST + NUM_TRAIN
    fields = {
        "image": random.integers(0, 255, (total, 8, 8)).astype(np.uint8),
        "label": np.arange(total) % 10,
    }
    splits = {"train": NUM_TRAIN, "test": NUM_TEST}
    names = tuple(str(number) for number in range(10))
    write_dataset(home / "dataset", fields, splits=splits, shard_samples=40, classes=names)
    return home / "dataset"


@pytest.fixture(scope="module")
def checkpoint(home) -> Path:
    torch.manual_seed(3)
    torch.save({"state_dict": DigitsClassifier().state_dict()}, home / "final.ckpt")
    return home / "final.ckpt"


CSV = "lightning.pytorch.loggers.CSVLogger"


def recipe(dataset: Path, trainer: dict[str, object] | None = None, **evaluate: object) -> Recipe:
    content = {
        "name": "digits",
        "dataset": {"name": "small", "path": str(dataset)},
        "model": {"_target_": "headrace.examples.digits_model.DigitsClassifier"},
        "data": {"transforms": [{"_target_": "headrace.data.transforms.ScaleToUnit"}]},
        "trainer": {"accelerator": "cpu", **(trainer or {})},
        "evaluate": {"batch_size": 16, **evaluate},
    }
    return Recipe.model_validate(content)


def submit(
    lease, home, site, kind: str, made: Recipe, **inputs: str
) -> tuple[StepFolder, RunFolder]:
    number = len(list(home.glob("runs/*")))
    run_folder = RunFolder(home / "runs" / f"{kind}-{number}")
    run_folder.path.mkdir(parents=True)
    write_record(run_folder.recipe, made)
    write_record(run_folder.site, site)
    return mailbox.submit(lease, step_spec(run_folder, kind, inputs=inputs)), run_folder


def run(lease, home, site, kind: str, made: Recipe, **inputs: str) -> tuple[StepResult, RunFolder]:
    step, run_folder = submit(lease, home, site, kind, made, **inputs)
    result: list[StepResult] = []
    wait_until(
        lambda: result.append(mailbox.outcome(step)) or result[-1] is not None, 240, "the step"
    )
    return result[-1], run_folder


def test_an_evaluation_goes_on_in_the_next_lease(home, site, dataset, checkpoint, monkeypatch):
    inputs = {"dataset": str(dataset), "checkpoint": str(checkpoint)}
    lease, made = LeaseFolder(home / "leases" / "ending"), recipe(dataset)
    lease.path.mkdir(parents=True)
    step, run_folder = submit(lease, home, site, "evaluate", made, **inputs)
    node, first = OneNode(Role(kind="gang", nodes=1)), open_context(step)
    monkeypatch.setattr(first, "left_s", lambda: 0.0)
    with own_predictor(), pytest.raises(LeaseEndsError, match="5 items are left"):
        evaluate(first, node)
    (kept,) = run_folder.predicted.iterdir()
    written_at = kept.stat().st_mtime_ns
    again = mailbox.submit(lease, step_spec(run_folder, "evaluate", inputs=inputs))
    with own_predictor():
        outputs = evaluate(open_context(again), node)
    assert outputs["num_samples"] == NUM_TEST
    assert len(list(again.parts.glob("*.pt"))) == 6
    assert (again.parts / kept.name).stat().st_mtime_ns == written_at


def test_stage_copies_once_a_node(lease, home, site, dataset):
    shutil.rmtree(home / "tier", ignore_errors=True)
    result, _ = run(lease, home, site, "stage", recipe(dataset), dataset=str(dataset))
    assert result.failure is None
    outputs = result.outputs
    assert [node["node"] for node in outputs["nodes"]] == ["node-0", "node-1"]
    # both nodes of this lease are this machine: one copies, the other finds it
    assert sorted(node["reused"] for node in outputs["nodes"]) == [False, True]
    assert {node["tier"] for node in outputs["nodes"]} == {"disk"}
    folder = Path(outputs["nodes"][0]["folder"])
    assert ShardedDataset(folder, "test").manifest.num_samples == NUM_TEST + NUM_TRAIN
    assert outputs["num_bytes"] == ShardedDataset(folder, "test").manifest.num_bytes
    assert outputs["bytes_per_s"] > 0
    usage = result.usage
    assert (usage.node, usage.nodes, usage.staging_s) == ("node-0", 2, outputs["seconds"])
    again, _ = run(lease, home, site, "stage", recipe(dataset), dataset=str(dataset))
    assert all(node["reused"] for node in again.outputs["nodes"])
    assert again.outputs["bytes_per_s"] == 0


@pytest.fixture(scope="module")
def evaluated(lease, home, site, dataset, checkpoint) -> tuple[StepResult, RunFolder]:
    """The last checkpoint on the test split, and beside it the best one, and the training split.

    The best one is a folder of parts that ranks have written.
    """
    torch.manual_seed(4)
    write_in_parts(home / "best.ckpt", DigitsClassifier().state_dict())
    given = {"dataset": str(dataset), "checkpoint": str(checkpoint)}
    made = recipe(
        dataset,
        trainer={"monitor": "val_loss", "loggers": [{"_target_": CSV}]},
        also_splits=["train"],
        also_checkpoints=["best"],
        max_metrics={"calibration_error": 1.0},
    )
    best = str(home / "best.ckpt")
    return run(lease, home, site, "evaluate", made, best_checkpoint=best, **given)


def test_predictors_are_forked_from_what_the_nodes_imported_as_they_started(evaluated, lease):
    """Not from another process, which an environment that is not the same would bring."""
    (found,) = marked([lease]).values()
    forking = [each for each in found if run_leases.PRELOAD[0] in each.cmdline()]
    servers = [each for each in forking if each.name() != "predictor"]
    assert len(servers) <= 2  # nodes
    for each in found:
        with suppress(psutil.NoSuchProcess):  # a fork server may have ended for want of work
            assert "MALLOC_TRIM_THRESHOLD_" not in each.environ()


def test_evaluate_counts_each_sample_once(evaluated, dataset):
    """Pains 49."""
    result, run_folder = evaluated
    assert result.failure is None, result.failure
    rows = parquet.read_table(result.outputs["predictions"])
    ids = np.arange(NUM_TRAIN, NUM_TRAIN + NUM_TEST)
    np.testing.assert_array_equal(rows["sample_id"], ids)
    assert rows.column_names == ["sample_id", "source", "split", "preds", "label"]
    assert len(set(rows["source"].to_pylist())) == NUM_TEST
    expected = _scores_here(dataset)
    np.testing.assert_allclose(rows["preds"].to_pylist(), expected, rtol=1e-4, atol=1e-6)
    accuracy = (expected.argmax(1) == rows["label"].to_numpy()).mean()
    assert result.outputs["metrics"]["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert result.outputs["num_samples"] == NUM_TEST
    assert result.usage.nodes == 2
    assert 0 < result.usage.evaluate_s < result.finished_at - result.started_at
    html = Path(result.outputs["report"]).read_text()
    assert run_folder.run_id in html
    written = json.loads((run_folder.report / "metrics.json").read_text())
    assert written["metrics"] == result.outputs["metrics"]


def test_other_checkpoints_and_splits_have_reports_of_their_own(evaluated, dataset):
    result, run_folder = evaluated
    also = result.outputs["also"]
    tried = [("train", 3, "train-last"), ("test", 4, "test-best"), ("train", 4, "train-best")]
    assert [each["split"] for each in also] == [split for split, _, _ in tried]
    main = (run_folder.report / "report.html").read_text()
    for found, (split, seed, label) in zip(also, tried, strict=True):
        rows = parquet.read_table(found["predictions"])
        expected = _scores_here(dataset, split, seed)
        np.testing.assert_allclose(rows["preds"].to_pylist(), expected, rtol=1e-4, atol=1e-6)
        accuracy = (expected.argmax(1) == rows["label"].to_numpy()).mean()
        assert found["metrics"]["accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert found["report"] == str(run_folder.report / label / "report.html")
        assert Path(found["report"]).exists()
        assert f"{label}/report.html" in main


def test_the_metrics_of_each_evaluation_reach_the_loggers(evaluated):
    result, run_folder = evaluated
    found = {}
    for file in run_folder.tensorboard.rglob("metrics.csv"):
        (row,) = csv.DictReader(file.read_text().splitlines())
        found |= {name: {*found.get(name, ()), float(value)} for name, value in row.items()}
    for each in (result.outputs, *result.outputs["also"]):
        assert each["metrics"]["accuracy"] in found[f"{each['split']}/accuracy"]
    assert failures_of(run_folder).count == 0


def test_a_checkpoint_that_is_missing_fails_after_the_others_are_evaluated(
    lease, home, site, dataset, checkpoint
):
    given = {"dataset": str(dataset), "checkpoint": str(checkpoint)}
    made = recipe(dataset, also_checkpoints=[7, str(home / "best.ckpt")])
    result, run_folder = run(lease, home, site, "evaluate", made, **given)
    assert result.failure.failure_class is FailureClass.USER_ERROR
    assert "evaluate.checkpoint is 7, but" in result.failure.message
    others = sorted(run_folder.report.rglob("report.html"))
    assert len(others) == 2
    assert all(str(report) in result.failure.message for report in others)
    assert "none: the checkpoint is missing" in (run_folder.report / "report.html").read_text()


def _scores_here(dataset: Path, name: str = "test", seed: int = 3) -> np.ndarray:
    torch.manual_seed(seed)
    model = DigitsClassifier().eval()
    split = ShardedDataset(dataset, name)
    batch = ScaleToUnit()(SampleReader(split).read(np.arange(len(split))))
    with torch.inference_mode():
        return model.predict_step(batch, 0).numpy()


def test_predictions_do_not_depend_on_who_does_what(
    evaluated, lease, home, site, dataset, checkpoint
):
    given = {"dataset": str(dataset), "checkpoint": str(checkpoint)}
    made = recipe(dataset, trainer={"loggers": [{"_target_": CSV, "save_dir": "/dev/null"}]})
    again, run_folder = run(lease, home, site, "evaluate", made, **given)
    assert again.failure is None, again.failure
    assert failures_of(run_folder).last.startswith("loggers: ")
    first, second = (result.outputs["predictions"] for result in (evaluated[0], again))
    assert first != second
    assert Path(first).read_bytes() == Path(second).read_bytes()


def test_model_that_is_not_good_enough_fails_after_the_report(
    lease, home, site, dataset, checkpoint
):
    given = {"dataset": str(dataset), "checkpoint": str(checkpoint)}
    made = recipe(dataset, min_metrics={"accuracy": 0.97})
    result, run_folder = run(lease, home, site, "evaluate", made, **given)
    assert result.state is StepState.FAILED
    assert result.failure.failure_class is FailureClass.DATA_ERROR
    assert "the bound is at least 0.97" in result.failure.message
    assert str(run_folder.report / "report.html") in result.failure.message
    assert "bound: at least 0.97" in (run_folder.report / "report.html").read_text()


MODELS = """
import os, pathlib, time
from headrace.examples.digits_model import DigitsClassifier

class Stuck(DigitsClassifier):
    def predict_step(self, batch, index):
        pathlib.Path("{home}/predictor.pid").write_text(str(os.getpid()))
        time.sleep(600)

class Frail(DigitsClassifier):
    def predict_step(self, batch, index):
        if batch["sample_id"][0] == {first} and not os.path.exists("{home}/died"):
            pathlib.Path("{home}/died").touch()
            os.kill(os.getpid(), 9)
        return super().predict_step(batch, index)

class Harmful(DigitsClassifier):
    def predict_step(self, batch, index):
        if batch["sample_id"][0] == {first} and not os.path.exists("{home}/harmed"):
            pathlib.Path("{home}/harmed").touch()
            for shard in pathlib.Path("{home}/tier/datasets").glob("*/shards/test-00000.h5"):
                with shard.open("r+b") as file:
                    file.seek(-1, 2)
                    last = file.read(1)[0]
                    file.seek(-1, 2)
                    file.write(bytes([last ^ 1]))
        return super().predict_step(batch, index)

    def test_step(self, batch, index):
        scores = self.predict_step(batch, index)
        self.log("hits", (scores.argmax(1) == batch["label"]).float().mean())
        return {{"preds": scores}}

def seen(results):
    return f"<p>{{len(results['source'])}} pictures, {{results['preds'].shape[1]}} classes</p>"
"""


OWN = {
    "task": "custom",
    "metrics": {
        name: {"_target_": f"torchmetrics.classification.Multiclass{kind}", "num_classes": 10}
        for name, kind in (("accuracy", "Accuracy"), ("auroc", "AUROC"))
    },
    "max_metrics": {"accuracy": 1},
    "figures": {"seen": {"_target_": "users_models.seen"}},
}
"""Of sums, and of lists of all scores."""


def own_metrics_here(dataset: Path) -> dict[str, float]:
    target = torch.from_numpy(ShardedDataset(dataset, "test").gather("label", np.arange(NUM_TEST)))
    scores = torch.from_numpy(_scores_here(dataset))
    kinds = {"accuracy": MulticlassAccuracy(10), "auroc": MulticlassAUROC(10)}
    return {name: float(metric(scores, target)) for name, metric in kinds.items()}


@pytest.fixture(scope="module")
def with_model(home, dataset):
    """Makes a recipe with a model of the user's own."""
    (home / "code").mkdir()
    code = MODELS.format(home=home, first=NUM_TRAIN)
    (home / "code" / "users_models.py").write_text(code)

    def make(name: str, **evaluate: object) -> Recipe:
        model = Target.model_validate({"_target_": f"users_models.{name}"})
        own = {"code": (str(home / "code"),), "model": model}
        return recipe(dataset, **OWN, **evaluate).model_copy(update=own)

    return make


def test_an_evaluation_survives_the_death_of_what_predicts(
    lease, home, site, dataset, checkpoint, with_model
):
    given = {"dataset": str(dataset), "checkpoint": str(checkpoint)}
    result, _ = run(lease, home, site, "evaluate", with_model("Frail"), **given)
    assert (home / "died").exists()
    assert result.failure is None, result.failure
    assert result.outputs["num_samples"] == NUM_TEST
    assert result.outputs["metrics"] == pytest.approx(own_metrics_here(dataset), abs=1e-5)
    assert f"{NUM_TEST} pictures, 10 classes" in Path(result.outputs["report"]).read_text()


def test_an_evaluation_of_a_shard_that_changes_is_made_again_and_told(
    lease, home, site, dataset, checkpoint, with_model
):
    given = {"dataset": str(dataset), "checkpoint": str(checkpoint)}
    step, _ = submit(lease, home, site, "evaluate", with_model("Harmful", step="test"), **given)
    wait_until(lambda: mailbox.outcome(step) is not None, 240, "the step")
    result = mailbox.outcome(step)
    assert (home / "harmed").exists()
    assert result.failure is None, result.failure
    assert result.outputs["num_samples"] == NUM_TEST
    labels = ShardedDataset(dataset, "test").gather("label", np.arange(NUM_TEST))
    hits = float((_scores_here(dataset).argmax(1) == labels).mean())
    expected = {**own_metrics_here(dataset), "hits": hits}
    assert result.outputs["metrics"] == pytest.approx(expected, abs=1e-5)
    (told,) = mailbox.status(step).restarts
    assert "shards/test-00000.h5" in told
    assert "changed since it was verified" in told


def test_an_evaluation_ends_with_its_driver(lease, home, site, dataset, checkpoint, with_model):
    """The process that predicts is ended; the worker goes on."""
    given = {"dataset": str(dataset), "checkpoint": str(checkpoint)}
    step, _ = submit(lease, home, site, "evaluate", with_model("Stuck"), **given)
    pid = int(wait_until(lambda: _content(home / "predictor.pid"), 120, "a prediction to begin"))
    predictor = psutil.Process(pid)
    worker = worker_of(predictor)
    assert worker is not None
    (driver,) = drivers_of(step)
    driver.kill()
    wait_until(lambda: not psutil.pid_exists(pid), 90, "the predictor to end")
    assert worker.is_running()


def _content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_missing_inputs_are_named(home, site, dataset):
    run_folder = RunFolder(home / "bare")
    run_folder.path.mkdir()
    write_record(run_folder.recipe, recipe(dataset))
    write_record(run_folder.site, site)
    for kind in ("stage", "evaluate"):
        step = LeaseFolder(home / "no-lease").step(1 if kind == "stage" else 2)
        step.path.mkdir(parents=True)
        write_record(step.spec, step_spec(run_folder, kind))
        result = run_step(step)
        assert f"The {kind} step was given no dataset" in result.failure.message
