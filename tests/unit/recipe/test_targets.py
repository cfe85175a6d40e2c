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


OTHER_LOGGER = {"_target_": "lightning.pytorch.loggers.CSVLogger"}


def with_logger(kind: str) -> Recipe:
    target = {"_target_": f"lightning.pytorch.loggers.{kind}"}
    return recipe_of({}, trainer={"loggers": [OTHER_LOGGER, target]})


@pytest.mark.parametrize(
    ("kind", "package", "installed"),
    [
        ("TensorBoardLogger", "tensorboard or tensorboardX", "tensorboardX"),
        ("WandbLogger", "wandb", "wandb"),
        ("CometLogger", "comet-ml", "comet_ml"),
    ],
)
def test_a_logger_without_its_package_is_refused_where_the_nodes_are_as_here(
    monkeypatch: pytest.MonkeyPatch, kind: str, package: str, installed: str
) -> None:
    there: set[str] = set()
    monkeypatch.setattr(target_arguments, "find_spec", lambda name: name in there or None)
    with pytest.raises(TargetError) as caught:
        check_packages(with_logger(kind), Role())
    assert f"trainer.loggers[1]: {kind} needs {package}, which is not" in caught.value.what
    assert "on the machine that trains" in caught.value.what
    assert "pip install" in caught.value.hint
    other = {"backend": "slurm", "batch": {"modules": ["python/3.13"]}}
    check_packages(with_logger(kind), Role.model_validate(other))
    with pytest.raises(TargetError, match=f"{kind} needs {package}"):
        check_training(with_logger(kind), opened(load_site("laptop"), is_from_terminal=True))
    check_packages(with_logger("CSVLogger"), Role())
    there.add(installed)
    check_packages(with_logger(kind), Role())


DETECTION = "torchmetrics.detection"


@pytest.mark.parametrize(
    ("target", "there", "lacking"),
    [
        (
            f"{DETECTION}.MeanAveragePrecision",
            (),
            "torchvision and pycocotools or faster-coco-eval",
        ),
        (f"{DETECTION}.mean_ap.MeanAveragePrecision", ("faster_coco_eval",), "torchvision"),
        (f"{DETECTION}.GeneralizedIntersectionOverUnion", ("pycocotools",), "torchvision"),
    ],
)
def test_metrics_of_detection_without_their_packages_are_told_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, target: str, there: tuple[str, ...], lacking: str
) -> None:
    """Not once training is over; nodes with packages of their own may have them."""
    monkeypatch.setattr(target_arguments, "find_spec", lambda name: name in there or None)
    evaluate = {"task": "custom", "metrics": {"map": {"_target_": target}}}
    recipe = recipe_of({}, evaluate=evaluate)
    with pytest.raises(TargetError, match=rf"metrics\.map: \w+ needs {lacking}") as caught:
        check_packages(recipe, Role())
    assert "pip install 'headrace[detection]'" in caught.value.hint
    other = {"backend": "slurm", "batch": {"modules": ["python/3.13"]}}
    check_packages(recipe, Role.model_validate(other))
    monkeypatch.setattr(target_arguments, "find_spec", lambda name: name)
    check_packages(recipe, Role())
    metrics = {"map": {"_target_": target, "iou_type": "segm"}}
    masks = recipe_of({}, evaluate={"task": "custom", "metrics": metrics})
    with pytest.raises(TargetError, match="of masks keeps other things than tensors"):
        check_packages(masks, Role())
