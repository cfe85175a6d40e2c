"""Loggers that send to MLflow and Weights & Biases, by their own packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers.logger import DummyLogger

from headrace.data.instantiate import Allowed
from headrace.errors import StepError, UserError
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder, SiteFolder, StepFolder
from headrace.loggers import Identity, build_loggers, identity_of, log_evaluation
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.recipe import Recipe
from headrace.steps.context import StepContext
from headrace.steps.mailbox import StepSpec
from support.ports import find_free_port

ALLOWED = Allowed(
    listed=("lightning.pytorch.loggers.MLFlowLogger", "lightning.pytorch.loggers.WandbLogger")
)
TRIAL = Identity(
    run_id="digits-1",
    trial="7",
    recipe="digits",
    site="laptop",
    attempt="1",
    dataset="f00d",
    git_commit="c0ffee",
)
TAGS = {
    "headrace.run_id": "digits-1",
    "headrace.suite": "digits-1",
    "headrace.trial": "7",
    "headrace.recipe": "digits",
    "headrace.site": "laptop",
    "headrace.attempt": "1",
    "headrace.dataset": "f00d",
    "headrace.git_commit": "c0ffee",
}


def recipe_with(loggers: str) -> Recipe:
    return load_recipe("digits", [f"trainer.loggers={loggers}", "model.lr=0.25"])


def begun(folder: Path, run: str, **spec: Any) -> tuple[RunFolder, StepFolder]:
    """A run with a step, whose folder is made."""
    site = SiteFolder(folder)
    step = site.lease("lease").step(1)
    step.path.mkdir(parents=True, exist_ok=True)
    told = {"kind": "train", "name": "train", "run_folder": f"{folder}/runs/{run}", **spec}
    write_record(step.spec, StepSpec(key="k", run_id="digits-1", attempt=2, **told))
    return RunFolder(Path(told["run_folder"])), step


@pytest.mark.parametrize(
    ("run", "trial", "name"),
    [("digits-1", "", "digits-1"), ("digits-1/trials/000007", "7", "digits-1-7")],
)
def test_who_logs_is_known_of_runs_and_of_trials(tmp_path, run, trial, name):
    folder = SiteFolder(tmp_path).run("digits-1")
    folder.path.mkdir(parents=True)
    folder.provenance.write_text(json.dumps({"git": {"commit": "c0ffee", "dirty": True}}))
    known = ("f00d", load_recipe("digits"), load_site("laptop"))
    found = identity_of(*begun(tmp_path, run), *known)
    assert found == TRIAL.model_copy(update={"trial": trial, "attempt": "2"})
    assert found.name == name
    folder.provenance.write_text(json.dumps({"git": None}))
    elsewhere = identity_of(*begun(tmp_path, run), *known)
    assert "headrace.git_commit" not in elsewhere.tags


def test_ranks_other_than_the_first_send_nothing(tmp_path):
    made = build_loggers(recipe_with("[csv, mlflow, wandb]"), ALLOWED, tmp_path, None)
    assert [type(each).__name__ for each in made] == ["CSVLogger", "DummyLogger", "DummyLogger"]
    assert isinstance(made[1], DummyLogger)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # by MLflow
def test_each_attempt_goes_on_with_the_same_run_of_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/team.db")
    recipe = recipe_with("[mlflow]")
    (first,) = build_loggers(recipe, ALLOWED, tmp_path, TRIAL)
    first.log_metrics({"loss": 2.0}, 1)
    first.finalize("failed")
    (other,) = build_loggers(recipe, ALLOWED, tmp_path, TRIAL.model_copy(update={"trial": "8"}))
    again = TRIAL.model_copy(update={"attempt": "2"})
    changed = recipe.model_copy(update={"seed": 99})  # what it began with stays
    (second,) = build_loggers(changed, ALLOWED, tmp_path, again)
    assert first.run_id == second.run_id != other.run_id
    client = second.experiment
    found = client.get_run(second.run_id)
    assert found.info.status == "RUNNING"
    assert found.data.tags.items() >= {**TAGS, "headrace.attempt": "2"}.items()
    assert found.data.tags["mlflow.source.git.commit"] == "c0ffee"
    assert (found.info.run_name, found.data.params["model.lr"]) == ("digits-1-7", "0.25")
    assert client.get_experiment(second.experiment_id).name == "digits"
    wanted = "tags.`headrace.suite` = 'digits-1'"
    assert len(client.search_runs([second.experiment_id], wanted)) == 2
    assert not (tmp_path / "mlflow").exists()


@pytest.mark.slow
def test_weights_and_biases_is_told_who_logs(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    (logger,) = build_loggers(recipe_with("[wandb]"), ALLOWED, tmp_path, TRIAL)
    run = logger.experiment
    assert (run.id, run.name, run.project) == ("digits-1-7", "digits-1-7", "digits")
    assert (run.group, run.resumed) == ("digits-1", False)
    assert set(run.tags) == {f"{key}:{text}" for key, text in TAGS.items()}
    assert run.config["model.lr"] == 0.25
    assert dict(run.config).items() >= TAGS.items()
    assert not any("loggers" in key for key in run.config.keys())  # noqa: SIM118  no mapping
    wandb.finish()
    wandb.teardown()  # it keeps what it read of the environment
    assert len(list(tmp_path.glob("wandb/offline-run-*-digits-1-7"))) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # by MLflow
def test_an_evaluation_logs_to_the_run_of_its_training(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("WANDB_MODE", "offline")
    site = load_site("laptop").model_copy(update={"allowed_targets": ALLOWED.listed})
    recipe = recipe_with("[csv, tensorboard, mlflow, wandb]")
    run, step = begun(tmp_path, "digits-1/trials/00007")
    spec = StepSpec.model_validate_json(step.spec.read_bytes())
    context = StepContext(folder=step, spec=spec, recipe=recipe, site=site)
    run.checkpoints.mkdir(parents=True)
    (run.checkpoints / "final.json").touch()
    *_, mlflow, wandb = build_loggers(recipe, ALLOWED, run.tensorboard, TRIAL)
    mlflow.log_metrics({"val/accuracy": 0.5}, 9)
    mlflow.finalize("success")
    wandb.experiment.finish()
    metrics = {"test/accuracy": 0.75, "test/auroc": None}
    log_evaluation(context, run, "f00d", metrics, 40)
    found = mlflow.experiment.get_run(mlflow.run_id)
    assert found.data.metrics == {"val/accuracy": 0.5, "test/accuracy": 0.75}
    assert found.info.status == "FINISHED"
    (written,) = run.tensorboard.glob("csv/version_*/metrics.csv")
    assert written.read_text().splitlines() == ["step,test/accuracy", "40,0.75"]
    scalars = EventAccumulator(str(next(run.tensorboard.glob("tensorboard/version_*"))))
    (scalar,) = scalars.Reload().Scalars("test/accuracy")
    assert (scalar.step, scalar.value) == (40, 0.75)
    sent = b"".join(
        path.read_bytes() for path in run.tensorboard.glob("wandb/offline-run-*/*.wandb")
    )
    assert b"test/accuracy" in sent
    import wandb as package

    package.teardown()  # it keeps what it read of the environment


def test_a_service_that_does_not_answer_is_tried_again_later_and_a_refusal_is_not(
    tmp_path, monkeypatch
):
    address = f"127.0.0.1:{find_free_port()}"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://ann:secret@{address}")
    with pytest.raises(StepError, match=rf"MLflow at http://\*\*\*@{address}") as caught:
        build_loggers(recipe_with("[mlflow]"), ALLOWED, tmp_path, TRIAL)
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://{address}")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"Weights & Biases cannot be used: .*API key") as refused:
        build_loggers(recipe_with("[wandb]"), ALLOWED, tmp_path, TRIAL)
    assert "environment of the ranks" in refused.value.hint
