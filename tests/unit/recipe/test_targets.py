"""Targets, code and datasets that are refused before anything is imported or started."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.errors import RecipeError, TargetError
from headrace.recipe import target_arguments
from headrace.recipe.fence import opened
from headrace.recipe.fit import check_packing, check_training
from headrace.recipe.load import load_recipe, load_site, parse
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.recipe.target_arguments import check_packages

RUN_ANYTHING = {
    "_target_": "lightning.pytorch.cli.instantiate_class",
    "args": "id > F",
    "init": {"class_path": "os.system"},
}


@pytest.mark.parametrize(
    "override",
    [
        f"trainer.callbacks=[{json.dumps(RUN_ANYTHING)}]",
        f"trainer.loggers=[{json.dumps(RUN_ANYTHING)}]",
        f"data.transforms=[{json.dumps(RUN_ANYTHING)}]",
        f"model={json.dumps(RUN_ANYTHING)}",
        f"model.optimizer={json.dumps(RUN_ANYTHING)}",
        f"model.deep=[{{a: [{json.dumps(RUN_ANYTHING)}]}}]",
        f"model._args_=[{json.dumps(RUN_ANYTHING)}]",
        "model.x={_recursive_: false, _target_: torch.nn.ReLU, y: {_target_: os.system}}",
        "trainer._target_=lightning.pytorch.cli.LightningCLI",
        "trainer._target_=lightning.pytorch.Trainer.__init__",
        "model._target_=headrace.examples.digits_model.DigitsClassifier.load_from_checkpoint",
        "model._target_=lightning.pytorch.LightningModule.load_from_checkpoint",
        "model.x={_target_: headrace.examples.digits.export_digits, folder: /}",
        "model.x={_target_: torch.hub.load, repo_or_dir: a/b, model: c}",
        "trainer.extra.plugins=[{_target_: torch.nn.ReLU}]",
        "model.x={_target_: torch.nn.functional.relu}",
        "model.x={_target_: torch.nn.Module.load_state_dict}",
    ],
)
def test_commands_cannot_be_named(override):
    with pytest.raises(TargetError):
        check_training(load_recipe("digits", [override]), load_site("laptop"))


def test_a_reader_is_judged_when_only_packing_is_asked_for():
    reader = {"_target_": "os.system"}
    recipe = load_recipe("digits", [f"dataset.reader={json.dumps(reader)}"])
    with pytest.raises(TargetError, match=r"'os\.system' at dataset\.reader"):
        check_packing(recipe, opened(load_site("laptop"), is_from_terminal=False))


def recipe_of(dataset: dict[str, Any], **changes: Any) -> Recipe:
    model = load_recipe("digits").model
    content = {
        "name": "r",
        "dataset": {"name": "d", "source": "/data", **dataset},
        "model": model.as_config(),
        **changes,
    }
    return parse(Recipe, content, "test")


UNLABELLED = [
    {"labels": "none"},
    {"labels": "none", "format": "tar"},
    {"labels": "none", "format": "parquet", "fields": {"x": "pixels"}},
]


@pytest.mark.parametrize("dataset", UNLABELLED)
def test_an_evaluation_without_labels_is_refused(dataset: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"dataset\.labels is 'none'") as caught:
        check_training(recipe_of(dataset), load_site("laptop"))
    assert "evaluate: null" in caught.value.hint


@pytest.mark.parametrize(
    ("dataset", "changes"),
    [
        *((each, {"evaluate": None}) for each in UNLABELLED),
        *((each, {"evaluate": {"task": "custom"}}) for each in UNLABELLED),
        ({}, {}),
        ({"labels": "none", "format": "parquet"}, {}),
        ({"labels": "none", "format": "parquet", "fields": {"label": "y"}}, {}),
        ({"labels": "none", "reader": {"_target_": "headrace.data.transforms.ScaleToUnit"}}, {}),
    ],
)
def test_what_may_bring_labels_is_not_refused(
    dataset: dict[str, Any], changes: dict[str, Any]
) -> None:
    check_training(recipe_of(dataset, **changes), load_site("laptop"))


def test_a_csv_file_of_a_fixed_name_is_refused() -> None:
    target = {"_target_": "lightning.pytorch.loggers.CSVLogger", "version": 3}
    with pytest.raises(TargetError, match=r"deletes the metrics\.csv of the one before"):
        check_packages(recipe_of({}, trainer={"loggers": [target]}), Role())
    check_packages(recipe_of({}, trainer={"loggers": ["csv", "tensorboard"]}), Role())


LOGGERS, DETECTION = "lightning.pytorch.loggers", "torchmetrics.detection"


def with_target(target: str, **arguments: object) -> Recipe:
    """A recipe that has a logger, or a metric, behind another one."""
    given = {"_target_": target, **arguments}
    if target.startswith(LOGGERS):
        return recipe_of({}, trainer={"loggers": ["csv", given]})
    return recipe_of({}, evaluate={"task": "custom", "metrics": {"map": given}})


@pytest.mark.parametrize(
    ("target", "there", "lacking", "hint", "missing"),
    [
        (f"{LOGGERS}.TensorBoardLogger", (), "tensorboard or tensorboardX", "", "tensorboardX"),
        (f"{LOGGERS}.WandbLogger", (), "wandb", "pip install wandb.", "wandb"),
        (f"{LOGGERS}.CometLogger", (), "comet-ml", "pip install comet-ml.", "comet_ml"),
        (
            f"{DETECTION}.MeanAveragePrecision",
            (),
            "torchvision and pycocotools or faster-coco-eval",
            "pip install 'headrace[detection]'",
            "torchvision pycocotools",
        ),
        (
            f"{DETECTION}.mean_ap.MeanAveragePrecision",
            ("torchvision",),
            "pycocotools or faster-coco-eval",
            "pip install 'headrace[detection]'",
            "faster_coco_eval",
        ),
        (f"{DETECTION}.GeneralizedIntersectionOverUnion", (), "torchvision", "", "torchvision"),
    ],
)
def test_a_logger_or_metric_without_its_packages_is_refused_where_the_nodes_are_as_here(
    monkeypatch: pytest.MonkeyPatch, target: str, there: tuple[str, ...], lacking: str, hint: str,
    missing: str,
) -> None:  # fmt: skip
    """Not once training is over; nodes with packages of their own may have them."""
    known = {*there}
    monkeypatch.setattr(target_arguments, "find_spec", lambda name: name in known or None)
    recipe, kind = with_target(target), target.rpartition(".")[2]
    site = opened(load_site("laptop"), is_from_terminal=True)
    for check in (lambda: check_packages(recipe, Role()), lambda: check_training(recipe, site)):
        with pytest.raises(TargetError, match=f": {kind} needs {lacking}, which is not") as caught:
            check()
        assert caught.value.what.startswith(("trainer.loggers[1]", "evaluate.metrics.map"))
        assert "on the machine that trains" in caught.value.what
        assert "pip install" in caught.value.hint
        assert hint in caught.value.hint
    other = {"backend": "slurm", "batch": {"modules": ["python/3.13"]}}
    check_packages(recipe, Role.model_validate(other))
    check_packages(with_target(f"{LOGGERS}.CSVLogger"), Role())
    known.update(missing.split())
    check_packages(recipe, Role())


def test_metrics_of_masks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_arguments, "find_spec", lambda name: name)
    check_packages(with_target(f"{DETECTION}.MeanAveragePrecision", iou_type="bbox"), Role())
    with pytest.raises(TargetError, match="of masks keeps other things than tensors"):
        check_packages(with_target(f"{DETECTION}.MeanAveragePrecision", iou_type="segm"), Role())
