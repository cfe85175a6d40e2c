"""Targets: only what the site allows, clear words for everything else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from headrace.data.targets import Allowed, check_code, instantiate, resolve
from headrace.data.transforms import ScaleToUnit
from headrace.errors import TargetError, UserCodeError
from headrace.recipe.targets import target_names
from support.training import make_recipe, make_site

SITE = Allowed(
    prefixes=("headrace.data.transforms", "torch.nn", "lightning.pytorch", "torchmetrics")
)


def test_an_allowed_target_is_made_with_its_arguments():
    made = instantiate({"_target_": "headrace.data.transforms.ScaleToUnit", "maximum": 4}, SITE)
    assert isinstance(made, ScaleToUnit)
    assert made.maximum == 4


def test_nested_targets_are_made_and_lists_stay_lists():
    config = {
        "_target_": "torch.nn.Sequential",
        "_args_": [{"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3}],
    }
    assert instantiate(config, SITE)(torch.zeros(1, 2)).shape == (1, 3)
    made = instantiate(
        {"_target_": "headrace.data.transforms.Normalize", "mean": [1, 2], "std": [1, 1]}, SITE
    )
    assert made.mean.tolist() == [1, 2]


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "torch.nnx.Linear",
        "torch.load",
        "headrace.data.transforms_of_others.Transform",
        "builtins.eval",
        "lightning.pytorch.trainer.trainer.os.system",
        "lightning.pytorch.trainer.trainer.os",
        "torch.nn.modules.module.torch.load",
        "torch.nn.modules.module.functools.partial",
        "lightning.pytorch.callbacks.model_checkpoint.deepcopy",
        "headrace.data.transforms.nearest",
    ],
)
def test_what_the_site_does_not_allow_is_refused(name):
    """Also what an allowed module merely imports: the prefix alone is no fence."""
    with pytest.raises(TargetError, match="does not allow the target") as caught:
        resolve(name, SITE)
    assert "allowed_targets" in caught.value.hint


@pytest.mark.parametrize(
    "name", ["torch.nn.__builtins__.get", "torch.nn._reduction.f", "a b", "", "."]
)
def test_private_and_malformed_names_are_refused(name):
    with pytest.raises(TargetError, match="no dotted name of public names"):
        resolve(name, SITE)


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
    assert "os.getpid" in list(target_names(config))
    with pytest.raises(TargetError, match=r"'os\.getpid'"):
        instantiate(config, SITE)


def test_a_typo_names_the_nearest():
    with pytest.raises(TargetError, match="does not exist") as caught:
        resolve("headrace.data.transforms.ScaleToUnti", SITE)
    assert "Did you mean 'ScaleToUnit'?" in caught.value.hint


def test_a_missing_module_is_said_so():
    with pytest.raises(TargetError, match="no module 'not_there'") as caught:
        resolve("not_there.Model", Allowed(prefixes=("not_there",)))
    assert "'code' of the recipe" in caught.value.hint


def test_a_constructor_that_raises_is_user_code():
    with pytest.raises(UserCodeError, match="TypeError") as caught:
        instantiate({"_target_": "headrace.data.transforms.ScaleToUnit", "wrong": 1}, SITE)
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
    assert instantiate({"_target_": "own_model_a.Model", "size": 3}, allowed).size == 3
    for name in ("own_model_a.run", "posix.system", "os.system", "subprocess.run"):
        with pytest.raises(TargetError, match="does not allow"):
            resolve(name, allowed)


def test_modules_of_code_folders_that_do_not_import(code):
    allowed = allowed_of(code, code)
    with pytest.raises(UserCodeError, match="No module named 'not_installed_at_all'"):
        resolve("own_model_b.Model", allowed)
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as caught:
        resolve("own_model_c.Model", allowed)
    assert "own_model_c.py" in caught.value.trace


def test_code_that_leaves_by_sys_exit_is_named(code):
    """Else its process would seem to have been lost, or to have ended well."""
    allowed = allowed_of(code, code)
    with pytest.raises(UserCodeError, match="Importing own_model_d raised SystemExit"):
        resolve("own_model_d.Model", allowed)
    with pytest.raises(UserCodeError, match=r"own_model_e\.made could not be made: SystemExit: 3"):
        instantiate({"_target_": "own_model_e.made"}, allowed)


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
