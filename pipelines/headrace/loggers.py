"""The recipe's loggers. Those that send to MLflow or Weights & Biases get the run's identity.

All attempts at a run or trial, and all launches of its ranks, log to one external run. Rank 0 alone
talks to it; the other ranks have a logger that does nothing.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger

from headrace.checkpoints.files import OUTCOME
from headrace.data.instantiate import Allowed, instantiate, resolve
from headrace.errors import HeadraceError, StepError, UserError, without_secrets
from headrace.files.atomic import read_bytes, read_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.informing import AFTERWARDS_S, PATIENCE_S, shielded
from headrace.recipe.difference import written
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.targets import uses
from headrace.record import Record
from headrace.steps.context import StepContext
from headrace.steps.mailbox import StepSpec

_MAX_TAG = 64
"""Characters of a tag of Weights & Biases."""
_SERVER_ERROR = 500
_NOT_IN_KEYS = re.compile(r"[^\w./ -]")
"""What MLflow refuses in names of parameters."""


class Identity(Record):
    """Which run logs, for what keeps its metrics elsewhere."""

    run_id: str
    """Of a trial that of its suite."""
    trial: str = ""
    """Number of the trial; empty for a run."""
    recipe: str
    site: str
    attempt: str
    dataset: str
    """Fingerprint of the dataset."""
    git_commit: str = ""
    """Empty where the recipe lies in no repository."""

    @property
    def name(self) -> str:
        """`RUN`, or `SUITE-NUMBER` of a trial: one external run for all attempts."""
        return f"{self.run_id}-{self.trial}" if self.trial else self.run_id

    @property
    def tags(self) -> dict[str, str]:
        """What it knows, by name; with `suite` for a trial."""
        known = self.model_dump()
        suite = {"suite": self.run_id} if self.trial else {}
        return {f"headrace.{key}": str(text) for key, text in {**known, **suite}.items() if text}


def identity_of(
    run: RunFolder, step: StepFolder, fingerprint: str, recipe: Recipe, site: Site
) -> Identity:
    """Return the identity of a run or trial that a step trains or evaluates.

    Raises:
        StepError: The step's folder has no spec.
    """
    spec = read_record(step.spec, StepSpec)
    if spec is None:
        raise StepError(f"{step.path} holds no spec.json")
    git = json.loads(read_bytes(run.whole.provenance) or "{}").get("git") or {}
    return Identity(
        run_id=run.whole.run_id,
        trial=run.run_id.partition(":")[2],
        recipe=recipe.name,
        site=site.name,
        attempt=str(spec.attempt),
        dataset=fingerprint,
        git_commit=git.get("commit", ""),
    )


def build_loggers(
    recipe: Recipe, allowed: Allowed, folder: Path, identity: Identity | None
) -> list[Logger]:
    """Make the recipe's loggers; what takes a `save_dir` gets `folder` unless it names one.

    The identity is None on ranks other than 0.

    Raises:
        UserError: MLflow or Weights & Biases refuses.
        StepError: It cannot be reached.
    """
    loggers = []
    for index, target in enumerate(recipe.trainer.loggers):
        key, config = f"trainer.loggers[{index}]", target.as_config()
        (use,) = (use for use in uses(key, config) if use.key == key)
        made = resolve(use, allowed)
        if "save_dir" in inspect.signature(made).parameters:
            config = {"save_dir": str(folder), **config}
        kinds = made.__mro__ if isinstance(made, type) else ()
        begin = next((_BEGIN[kind] for kind in kinds if kind in _BEGIN), None)
        if begin is None:
            loggers.append(instantiate(config, allowed, key))
        elif identity is None:
            loggers.append(DummyLogger())
        else:
            make = partial(instantiate, allowed=allowed, key=key)
            loggers.append(begin(config, recipe, identity, make))
    return loggers


def log_evaluation(
    context: StepContext,
    run: RunFolder,
    fingerprint: str,
    metrics: Mapping[str, float | None],
    step: int | None,
) -> None:
    """Send metrics of an evaluation to the loggers of the run that trained the model."""
    recipe, site = context.recipe, context.site
    identity = identity_of(run, context.folder, fingerprint, recipe, site)
    known = {name: value for name, value in metrics.items() if value is not None}
    for each in build_loggers(recipe, Allowed.of(recipe, site), run.tensorboard, identity):
        each.log_metrics(known, step)
        each.save()
        if (run.checkpoints / OUTCOME).exists():  # else the training still logs
            each.finalize("success")
        if isinstance(each, WandbLogger):
            each.experiment.finish()


def shield(logger: Logger, run: RunFolder) -> None:
    """Have what training calls of a logger be left out if it fails or hangs."""
    for name, within_s in _WITHIN_S.items():
        part = f"{name} of {type(logger).__name__}"
        setattr(logger, name, shielded(run, part, getattr(logger, name), within_s))


_WITHIN_S = {"log_metrics": PATIENCE_S, "save": PATIENCE_S} | dict.fromkeys(
    ("log_hyperparams", "after_save_checkpoint", "finalize"), AFTERWARDS_S
)

_Config = dict[str, Any]
_Make = Callable[[_Config], Any]


def _begin_mlflow(config: _Config, recipe: Recipe, identity: Identity, make: _Make) -> Logger:
    from mlflow.exceptions import MlflowException

    local = Path(config["save_dir"]) / "mlflow"
    uri = config.get("tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        local.mkdir(parents=True, exist_ok=True)
        config = {"artifact_location": str(local), **config}
    uri = uri or f"sqlite:///{local / 'mlflow.db'}"
    name = config.get("experiment_name") or os.environ.get("MLFLOW_EXPERIMENT_NAME") or recipe.name
    try:
        return _in_mlflow(
            {**config, "tracking_uri": uri, "experiment_name": name}, recipe, identity, make
        )
    except MlflowException as error:
        is_passing = error.get_http_status_code() >= _SERVER_ERROR
        raise _unusable(f"MLflow at {uri}", error, is_passing=is_passing) from error


def _in_mlflow(config: _Config, recipe: Recipe, identity: Identity, make: _Make) -> Logger:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(config["tracking_uri"])
    artifacts = config.get("artifact_location")
    run_id = _known_run(client, config["experiment_name"], artifacts, identity)
    commit = {"mlflow.source.git.commit": identity.git_commit} if identity.git_commit else {}
    tags = {**commit, **identity.tags, **config.get("tags", {})}
    logger: Logger = make({"run_name": identity.name, "run_id": run_id, **config, "tags": tags})
    if run_id is None:
        logger.log_hyperparams(_parameters(recipe))
    else:
        client.update_run(run_id, status="RUNNING")
        client.set_tag(run_id, "headrace.attempt", identity.attempt)
    return logger


def _known_run(client: Any, name: str, artifacts: str | None, identity: Identity) -> str | None:
    """Id of the run that an earlier attempt began; makes the experiment where there is none."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            client.create_experiment(name, artifact_location=artifacts)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # as by a trial beside this one
                raise
        return None
    wanted = f"tags.`mlflow.runName` = '{identity.name}'"
    runs = client.search_runs([found.experiment_id], wanted, max_results=1)
    return runs[0].info.run_id if runs else None


def _begin_wandb(config: _Config, recipe: Recipe, identity: Identity, make: _Make) -> Logger:
    from wandb.errors import AuthenticationError, CommError, Error

    own = {
        "name": identity.name,
        "id": identity.name,
        "project": os.environ.get("WANDB_PROJECT", recipe.name),
        "group": identity.run_id if identity.trial else None,
        "tags": [f"{key}:{text}"[:_MAX_TAG] for key, text in identity.tags.items()],
    }
    logger: Logger = make({**own, **config})
    try:
        logger.log_hyperparams({**_parameters(recipe), **identity.tags})
    except Error as error:
        is_passing = isinstance(error, CommError) and not isinstance(error, AuthenticationError)
        raise _unusable("Weights & Biases", error, is_passing=is_passing) from error
    return logger


def _unusable(service: str, error: Exception, *, is_passing: bool) -> HeadraceError:
    what = f"{service} cannot be used: {error}"
    if is_passing:
        return StepError(what)
    return UserError(what, "Its address and key come from the environment of the ranks.")


def _parameters(recipe: Recipe) -> dict[str, Any]:
    """What the recipe sets besides its loggers, by key; no secret of a URL."""
    return {
        _NOT_IN_KEYS.sub("_", key): without_secrets(value) if isinstance(value, str) else value
        for key, value in written(recipe).items()
        if key != "trainer.loggers"
    }


_BEGIN = {MLFlowLogger: _begin_mlflow, WandbLogger: _begin_wandb}
