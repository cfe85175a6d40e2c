"""Which targets and which code are refused before anything is imported or started."""

from __future__ import annotations

import json

import pytest

from headrace.errors import TargetError
from headrace.recipe.fit import check_packing, check_training, opened
from headrace.recipe.load import load_recipe, load_site

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
    recipe = load_recipe("digits", [override])
    with pytest.raises(TargetError):
        check_training(recipe, load_site("laptop"))


def test_a_reader_is_judged_when_only_packing_is_asked_for():
    reader = {"_target_": "os.system"}
    recipe = load_recipe("digits", [f"dataset.reader={json.dumps(reader)}"])
    with pytest.raises(TargetError, match=r"'os\.system' at dataset\.reader"):
        check_packing(recipe, opened(load_site("laptop"), is_from_terminal=False))
