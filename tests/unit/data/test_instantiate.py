"""Targets: only what the site allows, clear words for everything else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.data.instantiate import Allowed, check_code, instantiate, resolve
from headrace.data.transforms import ScaleToUnit
from headrace.errors import TargetError, UserCodeError
from headrace.recipe.targets import uses
from support.training import make_recipe, make_site

SITE = Allowed(listed=("headrace.data.transforms",))
SITE_OF_OWN = Allowed(listed=("builtins.dict",))


def resolved(name: str, allowed: Allowed = SITE, key: str = "model.part") -> Any:
    """What a name stands for, at a key of the recipe."""
    (use,) = uses(key, {"_target_": name})
    return resolve(use, allowed)


def test_an_allowed_target_is_made_with_its_arguments():
    config = {"_target_": "headrace.data.transforms.ScaleToUnit", "maximum": 4}
    made = instantiate(config, SITE, "data.transforms[0]")
    assert isinstance(made, ScaleToUnit)
    assert made.maximum == 4


def test_nested_targets_are_made_and_lists_stay_lists():
    config = {
        "_target_": "torch.nn.Sequential",
        "_args_": [{"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3}],
    }
    assert instantiate(config, SITE, "data.transforms[0]")(torch.zeros(1, 2)).shape == (1, 3)
    made = instantiate(
        {"_target_": "headrace.data.transforms.Normalize", "mean": [1, 2], "std": [1, 1]},
        SITE,
        "data.transforms[0]",
    )
    assert made.mean.tolist() == [1, 2]


def test_a_partial_target_waits_for_the_rest():
    config = {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.5}
    make = instantiate({"_target_": "builtins.dict", "a": config}, SITE_OF_OWN, "model.x")["a"]
    assert make([torch.zeros(1)]).defaults["lr"] == 0.5


def test_targets_below_recursive_false_are_judged_and_left():
    inner = {"_target_": "torch.nn.ReLU"}
    made = instantiate(
        {"_target_": "builtins.dict", "_recursive_": False, "a": inner}, SITE_OF_OWN, "model.x"
    )
    assert made == {"a": inner}
    bad = {"_target_": "builtins.dict", "_recursive_": False, "a": {"_target_": "os.getpid"}}
    with pytest.raises(TargetError, match=r"does not allow the target 'os\.getpid'"):
        instantiate(bad, SITE_OF_OWN, "model.x")


def test_what_looks_like_an_interpolation_is_a_text():
    """Nothing is resolved a second time when the object is made."""
    text = "${oc.env:HOME}"
    assert instantiate({"_target_": "builtins.dict", "a": text}, SITE_OF_OWN, "model.x") == {
        "a": text
    }


NOT_ALLOWED = [
    "os.system",
    "torch.nnx.Linear",
    "torch.load",
    "torch.hub.load",
    "torch.jit.load",
    "torch.jit.ScriptModule",
    "torch.fx.GraphModule",
    "torch.utils.data.DataLoader",
    "headrace.data.transforms_of_others.Transform",
    "headrace.examples.digits.export_digits",
    "builtins.eval",
    "functools.partial",
    "hydra.utils.instantiate",
    "hydra.utils.get_method",
    "omegaconf.OmegaConf.load",
    "lightning.pytorch.cli.instantiate_class",
    "lightning.pytorch.cli.SaveConfigCallback",
    "lightning.pytorch.LightningModule.load_from_checkpoint",
    "lightning.pytorch.trainer.trainer.os.system",
    "lightning.fabric.utilities.cloud_io._load",
    "pytorch_lightning.cli.instantiate_class",
    "torch.nn.modules.module.torch.load",
    "torch.nn.modules.module.functools.partial",
    "torch.nn.functional.relu",
    "torch.nn.init.uniform_",
    "torch.nn.utils.parametrize.register_parametrization",
    "torch.nn.Parameter",
    "torch.nn.quantized.Linear",
    "torch.optim.lr_scheduler.partial",
    "torch.optim.swa_utils.update_bn",
    "torchmetrics.functional.accuracy",
    "torchmetrics.text.bert.BERTScore",
    "torchmetrics.image.fid.FrechetInceptionDistance",
    "torchmetrics.multimodal.clip_score.CLIPScore",
    "headrace.data.transforms.nearest",
]


@pytest.mark.parametrize("key", ["model", "model.x", "trainer.callbacks[0]", "data.transforms[0]"])
@pytest.mark.parametrize("name", NOT_ALLOWED)
def test_what_the_site_does_not_allow_is_refused(name, key):
    """Functions of frameworks, what their modules import, and what loads code or files."""
    with pytest.raises(TargetError, match=r"not allow the target|not a dotted name") as told:
        resolved(name, key=key)
    assert "allowed_targets" in told.value.hint or "_load" in name


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("trainer.callbacks[0]", "torch.nn.Linear"),
        ("trainer.callbacks[0]", "lightning.pytorch.Trainer"),
        ("trainer.callbacks[0]", "lightning.pytorch.loggers.CSVLogger"),
        ("trainer.loggers[0]", "lightning.pytorch.callbacks.EarlyStopping"),
        ("trainer.loggers[0]", "lightning.pytorch.loggers.WandbLogger"),
        ("trainer", "lightning.pytorch.LightningModule"),
        ("trainer", "lightning.pytorch.Callback"),
        ("model", "torch.nn.Linear"),
        ("model", "lightning.pytorch.LightningModule"),
        ("model.x", "lightning.pytorch.callbacks.ModelCheckpoint"),
        ("data.transforms[0]", "torch.optim.Adam"),
        ("dataset.reader", "torch.nn.Identity"),
    ],
)
def test_a_class_where_another_kind_belongs_is_refused(key, name):
    with pytest.raises(TargetError, match=rf"not allow the target '.*' at {re.escape(key)}"):
        resolved(name, key=key)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("trainer", "lightning.pytorch.Trainer"),
        ("trainer.callbacks[0]", "lightning.pytorch.callbacks.EarlyStopping"),
        ("trainer.callbacks[3]", "lightning.pytorch.callbacks.lr_monitor.LearningRateMonitor"),
        ("trainer.loggers[0]", "lightning.pytorch.loggers.CSVLogger"),
        ("model.loss", "torch.nn.CrossEntropyLoss"),
        ("model.head[0]", "torch.nn.modules.linear.Linear"),
        ("model.optimizer", "torch.optim.AdamW"),
        ("model.schedule", "torch.optim.lr_scheduler.OneCycleLR"),
        ("model.schedule", "torch.optim.lr_scheduler.ReduceLROnPlateau"),
        ("model.metric", "torchmetrics.MeanMetric"),
        ("model.metric", "torchmetrics.classification.MulticlassAccuracy"),
        ("data.augment[0]", "torch.nn.Dropout"),
    ],
)
def test_classes_of_frameworks_are_allowed_where_their_kind_belongs(key, name):
    assert isinstance(resolved(name, key=key), type)


def test_a_site_lists_whole_names_of_frameworks_and_whole_packages_of_others():
    listed = Allowed(listed=("torch.nn", "lightning.pytorch", "torch.nn.functional.relu", "json"))
    assert resolved("torch.nn.functional.relu", listed) is torch.nn.functional.relu
    assert resolved("torch.nn.Linear", listed) is torch.nn.Linear
    assert resolved("json.JSONDecoder", listed) is json.JSONDecoder
    for name in ("torch.nn.functional.gelu", "lightning.pytorch.cli.instantiate_class"):
        with pytest.raises(TargetError, match="does not allow"):
            resolved(name, listed)
    with pytest.raises(TargetError, match="is an attribute"):
        resolved("json.JSONDecoder.decode", listed)
    whole = Allowed(listed=("json.JSONDecoder.decode",))
    assert resolved("json.JSONDecoder.decode", whole) is json.JSONDecoder.decode


@pytest.mark.parametrize(
    "name", ["torch.nn.__builtins__.get", "torch.nn._reduction.f", "a b", "", "."]
)
def test_private_and_malformed_names_are_refused(name):
    with pytest.raises(TargetError, match="not a dotted name of public names"):
        resolved(name)


@pytest.mark.parametrize(
    "config",
    [
        {"_target_": "torch.nn.ReLU", "inplace": {"_target_": "os.getpid"}},
        {"_target_": "torch.nn.Sequential", "_args_": [[{"_target_": "os.getpid"}]]},
        {"_target_": "torch.nn.ReLU", "inplace": {"deep": [{"er": {"_target_": "os.getpid"}}]}},
        {"_target_": "os.getpid", "_partial_": True},
    ],
)
def test_targets_hidden_in_arguments_are_refused(config):
    assert "os.getpid" in [use.name for use in uses("model.x", config)]
    with pytest.raises(TargetError, match=r"'os\.getpid'"):
        instantiate(config, SITE, "model.x")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"_target_": ["os.system"]}, r"model.x._target_ is \['os.system'\]\n.*a dotted name"),
        ({"_target_": {"_target_": "os.getpid"}}, "a dotted name"),
        ({"_target_": "torch.nn.ReLU", "_partial_": "true"}, "Valid: true or false"),
        ({"_target_": "torch.nn.ReLU", "_args_": {"a": 1}}, "Valid: a list"),
        ({"_target_": "torch.nn.ReLU", "_recursive_": 1}, "Valid: true or false"),
        ({"_target_": "torch.nn.ReLU", "_convert_": "object"}, "Valid: 'all'"),
        ({"_target_": "torch.nn.ReLU", "_path_": "x"}, "unknown key '_path_'"),
        ({"_target_": "torch.nn.ReLU", "a": {"_partial_": True}}, "'_partial_' but no '_target_'"),
        ({"_target_": "torch.nn.ReLU", 1: 2}, "has the key 1"),
    ],
)
def test_special_keys_of_the_wrong_type_are_refused(config, words):
    with pytest.raises(TargetError, match=words):
        instantiate(config, SITE, "model.x")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("model", "lightning.pytorch.demos.boring_classes.BoringModel"),
        ("model", "lightning.pytorch.demos.boring_classes.BoringModel.load_from_checkpoint"),
        ("model.x", "torch.nn.functional.relu"),
        ("model.x", "torch.nn.modules.module.functools.partial"),
        ("model.x", "json.JSONDecoder.decode"),
        ("model.x", "lightning.pytorch.callbacks.ModelCheckpoint"),
        ("trainer.callbacks[0]", "lightning.pytorch.callbacks.weight_averaging.EMAWeightAveraging"),
        ("trainer.loggers[0]", "lightning.pytorch.loggers.WandbLogger"),
        ("evaluate.figures.f", "torch.nn.Identity"),
        ("dataset.reader", "torch.load"),
        ("train.function", "os.system"),
    ],
)
def test_in_a_terminal_every_name_that_can_be_imported_is_allowed(key, name):
    assert callable(resolved(name, Allowed(listed=None), key))


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("model", "torch.nn.Linear", "Wrap it in a lightning.pytorch.LightningModule"),
        ("trainer.callbacks[0]", "torch.nn.Linear", "Derive it from lightning.pytorch.callbacks"),
        ("model", "torch.nn.Lineer", "Did you mean 'Linear'"),
        ("model", "json.JSONDecoder.decod", "Did you mean 'decode'"),
        ("model", "jsn.JSONDecoder", "Install it"),
        ("model", "json.decodr.JSONDecoder", "Did you mean 'decoder'"),
    ],
)
def test_in_a_terminal_a_wrong_name_or_kind_is_said_to_be_that(key, name, words):
    with pytest.raises(TargetError) as caught:
        resolved(name, Allowed(listed=None), key)
    assert words in caught.value.hint
    assert "allow" not in str(caught.value)


def test_a_typo_names_the_nearest():
    with pytest.raises(TargetError, match="does not exist") as caught:
        resolved("headrace.data.transforms.ScaleToUnti")
    assert "Did you mean 'ScaleToUnit'?" in caught.value.hint


def test_a_missing_module_is_said_so():
    with pytest.raises(TargetError, match="no module 'not_there'") as caught:
        resolved("not_there.Model", Allowed(listed=("not_there",)))
    assert "'code' of the recipe" in caught.value.hint


def test_a_constructor_that_raises_is_user_code():
    config = {"_target_": "headrace.data.transforms.ScaleToUnit", "wrong": 1}
    with pytest.raises(UserCodeError, match="TypeError") as caught:
        instantiate(config, SITE, "data.transforms[0]")
    assert "wrong" in caught.value.trace


@pytest.fixture
def code(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "own_model_a.py").write_text(
        "from subprocess import run\nclass Model:\n    def __init__(self, size=1):\n"
        "        self.size = size\n"
    )
    (folder / "own_model_b.py").write_text("import not_installed_at_all\n")
    (folder / "own_model_c.py").write_text("1 / 0\n")
    (folder / "own_model_d.py").write_text("import sys\nsys.exit()\n")
    (folder / "own_model_e.py").write_text("import sys\ndef made():\n    sys.exit(3)\n")
    (folder / "posix.py").write_text("")
    return folder


def allowed_of(code: Path, site_folder: Path) -> Allowed:
    recipe = make_recipe(
        {"code": [str(code)], "model": {"_target_": "own_model_a.Model"}, "evaluate": None}
    )
    return Allowed.of(recipe, make_site(code, allowed_code=[str(site_folder)]))


def test_modules_of_code_folders_are_allowed(code, monkeypatch):
    monkeypatch.chdir(code)
    allowed = allowed_of(code, code.parent)
    assert instantiate({"_target_": "own_model_a.Model", "size": 3}, allowed, "model.x").size == 3
    for name in ("own_model_a.run", "posix.system", "os.system", "subprocess.run"):
        with pytest.raises(TargetError, match="does not allow"):
            resolved(name, allowed)


def test_modules_of_code_folders_that_do_not_import(code):
    allowed = allowed_of(code, code)
    with pytest.raises(UserCodeError, match="No module named 'not_installed_at_all'"):
        resolved("own_model_b.Model", allowed)
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as caught:
        resolved("own_model_c.Model", allowed)
    assert "own_model_c.py" in caught.value.trace


def test_code_that_leaves_by_sys_exit_is_named(code):
    """Else its process would seem to have been lost, or to have ended well."""
    allowed = allowed_of(code, code)
    with pytest.raises(UserCodeError, match="Importing own_model_d raised SystemExit"):
        resolved("own_model_d.Model", allowed)
    with pytest.raises(UserCodeError, match=r"own_model_e\.made raised SystemExit: 3"):
        instantiate({"_target_": "own_model_e.made"}, allowed, "model.x")


def test_code_outside_the_sites_folders_is_refused(code, tmp_path):
    with pytest.raises(TargetError, match="does not allow code from"):
        allowed_of(code, tmp_path / "code-of-others")
    link = tmp_path / "inside"
    link.mkdir()
    (link / "out").symlink_to(code)
    with pytest.raises(TargetError, match="does not allow code from"):
        allowed_of(link / "out", link)


def test_code_that_does_not_exist(tmp_path):
    with pytest.raises(TargetError, match="does not exist"):
        check_code(str(tmp_path / "nowhere"), make_site(tmp_path, allowed_code=[str(tmp_path)]))


def test_modules_of_code_come_last_and_what_hides_one_is_named(code, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (code / "statistics.py").write_text("class Model: ...\n")
    allowed = allowed_of(code, code.parent)
    assert sys.path[-1] == str(code)
    with pytest.raises(TargetError, match=rf"{code}/statistics\.py is hidden by /.*: rename it"):
        resolved("statistics.Model", allowed)
