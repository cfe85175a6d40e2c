"""Typos in targets and their arguments are told before anything runs, and only where it is sure."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import TargetError
from headrace.recipe.load import load_recipe, parse
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.recipe.target_arguments import check_arguments, check_reader

CODE = """
import functools
import sys
from dataclasses import dataclass
from torch import nn
from lightning.pytorch import LightningModule
from other import Base, Elsewhere

heavy = {'torch'} & set(sys.modules)

class Model(LightningModule):
    def __init__(self, num_classes, hidden_sizes=(8,), *, dropout=0.1, optimizer=None):
        super().__init__()

class Typed(LightningModule):
    def __init__(
        self,
        lr: float = 0.1,
        width: int | None = 8,
        title: "str" = "x",
        flag: typing.Optional[bool] = None,
        either: Union[int, str] = 1,
        sizes: list[int] = (),
        rate=0.5,
        part: torch.nn.Module | None = None,
    ): ...

class Anything(LightningModule):
    def __init__(self, width, **kwargs): ...

class Plain(LightningModule):
    pass

class Deeper(Model):
    pass

class FromElsewhere(Base):
    pass

class Mixed(Base, nn.Module):
    pass

@dataclass
class Decorated:
    size: int

class ByMeta(metaclass=functools.partial):
    def __init__(self, size): ...

if nn:
    class Twice:
        def __init__(self, a): ...
else:
    class Twice:
        def __init__(self, b): ...

def read(path, spacing_mm): ...

@functools.cache
def wrapped(path): ...
"""
OTHER = """
class Base:
    def __init__(self, size): ...
from nowhere_installed import Elsewhere
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "other.py").write_text(OTHER)
    (tmp_path / "dynamic.py").write_text("def __getattr__(name): ...\n")
    (tmp_path / "placed.py").write_text("import sys\nsys.modules[__name__] = object()\n")
    (tmp_path / "broken.py").write_text("class Model(:\n")
    return tmp_path


def recipe_of(code: Path, **changes: Any) -> Recipe:
    content = {
        "name": "r",
        "code": [str(code)],
        "dataset": {"name": "d", "source": "/data"},
        "model": {"_target_": "mine.Model", "num_classes": 3},
    }
    return parse(Recipe, {**content, **changes}, "test")


def model(name: str, **arguments: object) -> dict[str, object]:
    return {"model": {"_target_": name, **arguments}}


def part(name: str, **arguments: object) -> dict[str, object]:
    return model("mine.Model", num_classes=3, optimizer={"_target_": name, **arguments})


ADAM = {"_target_": "torch.optim.Adam", "_partial_": True}
STOP = "lightning.pytorch.callbacks.EarlyStopping"


@pytest.mark.parametrize(
    ("changes", "what", "hint"),
    [
        (
            model("mine.Model", num_classes=3, hidden_sizee=3),
            "model: mine.Model has no argument 'hidden_sizee'",
            "Did you mean 'hidden_sizes'? Valid: dropout, hidden_sizes, num_classes, optimizer.",
        ),
        (model("mine.Model"), "model: mine.Model needs 'num_classes'", "Set model.num_classes. "),
        (model("mine.Model.made_by"), "'mine.Model.made_by' at model is an attribute", "Name the"),
        (model("mine.Modle"), "'mine.Modle' does not exist", "Did you mean 'Model'?"),
        (model("mine.Deeper", num_clases=1), "no argument 'num_clases'", "'num_classes'"),
        (part("mine.FromElsewhere", sise=1), "no argument 'sise'", "Did you mean 'size'?"),
        (
            model("mine.FromElsewhere", size=1),
            "'model' is the class mine.FromElsewhere, not a LightningModule",
            "Wrap it in a lightning.pytorch.LightningModule that has training_step",
        ),
        (
            part("torch.nn.functional.relu", _partial_=True),
            "not allow the target 'torch.nn.functional.relu' at model.optimizer",
            "Allowed there: a module of torch.nn; an optimizer",
        ),
        (
            {"trainer": {"loggers": [{"_target_": "lightning.pytorch.loggers.WandbLogger"}]}},
            "not allow the target 'lightning.pytorch.loggers.wandb.WandbLogger'",
            "a logger of lightning.pytorch.loggers that writes files",
        ),
        (model("mine.Anything"), "mine.Anything needs 'width'", "Set model.width"),
        (model("broken.Model"), "model: broken.Model cannot be imported: invalid", "Correct"),
        (
            model("headrace.examples.digits_modle.DigitsClassifier"),
            "'headrace.examples.digits_modle' does not exist",
            "Did you mean 'digits_model'?",
        ),
        (
            model("mine.Model", num_classes=3, optimizer={**ADAM, "lrr": 0.1}),
            "model.optimizer: torch.optim.Adam has no argument 'lrr'",
            "Did you mean 'lr'?",
        ),
        (
            {"data": {"transforms": [{"_target_": "headrace.data.transforms.AddNoise"}]}},
            "data.transforms[0]: headrace.data.transforms.AddNoise needs 'std'",
            "It takes: std, field.",
        ),
        (
            {"trainer": {"callbacks": [{"_target_": STOP, "monitr": "x"}]}},
            f"trainer.callbacks[0]: {STOP} has no argument 'monitr'",
            "Did you mean 'monitor'?",
        ),
        (
            model("mine.Typed", lr="1,2"),
            "model.lr is '1,2', but mine.Typed takes one float there",
            "A run has one value for each argument",
        ),
        (model("mine.Typed", lr=[0.1, 1e-3]), "model.lr is [0.1, 0.001]", "A run has one value"),
        (model("mine.Typed", rate="0.1, 1e-2"), "takes one number there", "A run has one value"),
        (model("mine.Typed", lr="fast"), "takes one float there", "Write it as float."),
        (model("mine.Typed", width=8.5), "takes one int there", "Write it as int."),
        (model("mine.Typed", width="8"), "model.width is '8'", "Write it as int."),
        (model("mine.Typed", title=["a"]), "takes one str there", "Write it as str."),
        (model("mine.Typed", flag="yes"), "takes one bool there", "Write it as bool."),
        (
            model("mine.Typed", either={"a": 1}),
            "takes one int or str there",
            "Write it as int or str.",
        ),
        (
            {"trainer": {"extra": {"limit_train_batchs": 3}}},
            "trainer.extra: lightning.pytorch.Trainer has no argument 'limit_train_batchs'",
            "Did you mean 'limit_train_batches'?",
        ),
        (
            {"trainer": {"_target_": "mine.Trainr"}},
            "'mine.Trainr' does not exist",
            "They are in",
        ),
        (
            {"evaluate": {"figures": {"f": {"_target_": "mine.read", "spacing": 3}}}},
            "evaluate.figures.f: mine.read has no argument 'spacing'",
            "Did you mean 'spacing_mm'?",
        ),
    ],
)
def test_a_target_that_cannot_be_made_is_told(code, changes, what, hint):
    with pytest.raises(TargetError) as caught:
        check_arguments(recipe_of(code, **changes), Role())
    assert what in caught.value.what
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {},
        model("mine.Model", num_classes=3, hidden_sizes=[1], dropout=0, optimizer=ADAM),
        model("mine.Model", _args_=[3]),
        model("mine.Model", _partial_=True),
        model("mine.Anything", width=1, whatever=2),
        model("mine.Typed", lr=1, width=None, title=3, flag=0, either="1,2", sizes="1,2"),
        model("mine.Typed", lr=True, title="1,2", rate="auto", part={"_target_": "mine.Plain"}),
        model("mine.Typed", rate=[0.1, 0.2], part="1,2"),
        {"trainer": {"extra": {"limit_train_batches": 0.5, "profiler": "simple"}}},
        model("mine.Plain", unknown=1),
        part("mine.Mixed", unknown=1),
        model("mine.Decorated", unknown=1),
        model("mine.ByMeta", unknown=1),
        model("mine.Twice", unknown=1),
        model("mine.Elsewhere", unknown=1),
        model("dynamic.Anything", unknown=1),
        model("placed.Anything", unknown=1),
        model("on_the_nodes_only.Model", unknown=1),
        model("mine.Model", num_classes=1, optimizer={**ADAM, "lr": 0.1}, _recursive_=False),
        {"trainer": {"loggers": [{"_target_": "lightning.pytorch.loggers.CSVLogger"}]}},
        {"evaluate": {"figures": {"f": {"_target_": "mine.read", "spacing_mm": 3}}}},
        {
            "evaluate": {
                "metrics": [
                    {
                        "_target_": "torchmetrics.segmentation.DiceScore",
                        "num_classes": 3,
                        "sync_on_compute": False,
                    }
                ]
            }
        },
    ],
)
def test_what_source_does_not_settle_is_not_refused(code, changes):
    check_arguments(recipe_of(code, **changes), Role())


@pytest.mark.parametrize("line", ["setattr(shelf, 'Old', New)", "shelf.Old = New"])
def test_a_name_that_another_module_of_its_package_sets_is_there(code: Path, line: str) -> None:
    """As Lightning does with names that it calls by others now."""
    package = code / "library"
    (package / "shelf").mkdir(parents=True)
    (package / "shelf" / "__init__.py").write_text("class New: ...\n")
    (package / "__init__.py").write_text("from library import graveyard\n")
    (package / "graveyard.py").write_text(f"from library import shelf\n{line}\n")
    check_arguments(recipe_of(code, **model("library.shelf.Old", size=1)), Role())
    with pytest.raises(TargetError, match=r"'library\.shelf\.Odd' does not exist"):
        check_arguments(recipe_of(code, **model("library.shelf.Odd")), Role())


def test_the_nearest_name_may_be_one_that_a_package_imports(code: Path) -> None:
    with pytest.raises(TargetError, match=r"torch\.optim\.AdmW.*\n.*Did you mean 'AdamW'"):
        check_arguments(recipe_of(code, **model("torch.optim.AdmW")), Role())


@pytest.mark.parametrize(
    "role",
    [
        {"backend": "slurm", "batch": {"python": "/opt/python"}},
        {"backend": "slurm", "batch": {"modules": ["python/3.13"]}},
        {"backend": "slurm", "batch": {"container": {"runtime": "apptainer", "image": "x.sif"}}},
        {"env": {"PYTHONPATH": "/newer"}},
    ],
)
def test_nodes_with_other_packages_are_not_judged_by_these_but_own_code_is(code, role):
    there = Role.model_validate(role)
    check_arguments(recipe_of(code, **model("headrace.examples.digits_model.Newer")), there)
    check_arguments(recipe_of(code, **model("broken.Model")), there)
    with pytest.raises(TargetError, match="no argument 'wrong'"):
        check_arguments(recipe_of(code, **model("mine.Model", wrong=1)), there)


class Editable:
    """Finds one package as the finders of `pip install -e` do: nothing is on the module path."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        return spec_from_file_location(name, self.file) if name == self.file.parent.name else None


def test_a_package_of_an_editable_install_is_read_as_others_are(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "elsewhere" / "my_timm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .factory import create_model\n")
    (package / "factory.py").write_text("def create_model(kind, width=3): ...\n")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable(package / "__init__.py")])
    check_arguments(recipe_of(code, **model("my_timm.create_model", kind="x")), Role(), None)
    for name, given, words in (
        ("my_timm.creat_model", {}, "'my_timm.creat_model' does not exist.*\n.*'create_model'"),
        ("my_timm.create_model", {"knd": 1}, "no argument 'knd'"),
        ("my_tim.create_model", {}, "no module is called 'my_tim'"),
    ):
        with pytest.raises(TargetError, match=words):
            check_arguments(recipe_of(code, **model(name, **given)), Role(), None)


@pytest.mark.parametrize(
    ("changes", "what", "hint"),
    [
        (model("other.Base", size=1), "not a LightningModule", "Wrap it in a"),
        (model("torch.nn.Linear"), "is the class torch.nn.Linear, not a Li", "Wrap it in a"),
        (
            model("mime.Model"),
            "no module is called 'mime'",
            "Correct the name, install its package",
        ),
        (
            model("ligtning.pytorch.X"),
            "no module is called 'ligtning'",
            "Did you mean 'lightning'?",
        ),
        (model("torch.optim.AdmW"), "'torch.optim.AdmW' does not exist", "mean 'AdamW'?"),
    ],
)
def test_in_a_terminal_a_wrong_name_or_kind_is_said_to_be_that(code, changes, what, hint):
    with pytest.raises(TargetError) as caught:
        check_arguments(recipe_of(code, **changes), Role(), None)
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert "allow" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        model("mine.Model.load_from_checkpoint", checkpoint_path="x"),
        model("lightning.pytorch.demos.boring_classes.BoringModel"),
        part("torch.nn.functional.relu", _partial_=True),
        part("os.system", command="true"),
        {"trainer": {"loggers": [{"_target_": "lightning.pytorch.loggers.WandbLogger"}]}},
        {"dataset": {"name": "d", "source": "/d", "reader": {"_target_": "mine.Model.read"}}},
    ],
)
def test_in_a_terminal_names_of_any_package_pass(code, changes):
    check_arguments(recipe_of(code, **changes), Role(), None)


def test_code_that_only_nodes_have_is_not_judged_here() -> None:
    recipe = recipe_of(Path("/of/the/nodes"), **model("on_the_nodes.Model"))
    check_arguments(recipe, Role(), None)


def test_the_arguments_of_a_reader_are_told_before_packing(code):
    def dataset(name: str, **arguments: object) -> Recipe:
        reader = {"_target_": name, **arguments}
        return recipe_of(code, dataset={"name": "d", "source": "/data", "reader": reader})

    check_reader(dataset("mine.read", spacing_mm=1.0), Role())
    check_reader(dataset("mine.wrapped", anything=1), Role())
    with pytest.raises(TargetError, match=r"dataset.reader: mine.read has no argument 'spacing'"):
        check_reader(dataset("mine.read", spacing=1.0), Role())


def test_nothing_is_imported(code):
    """The recipes that come along, too: what checks them stays light."""
    program = (
        "import sys\n"
        "from headrace.recipe.target_arguments import check_arguments\n"
        "from headrace.recipe.fit import check_training\n"
        "from headrace.recipe.load import load_recipe, load_site\n"
        "from headrace.recipe.site import Role\n"
        "check_training(load_recipe('digits', sys.argv[1:2]), load_site('laptop'))\n"
        "check_arguments(load_recipe('digits', sys.argv[2:]), Role())\n"
        "assert not {'torch', 'lightning', 'mine', 'headrace.examples'} & set(sys.modules)\n"
    )
    overrides = (
        "trainer.callbacks=[{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: loss}]",
        f"code=[{code}]",
        "model={_target_: mine.Anything, width: 1}",
    )
    subprocess.run([sys.executable, "-c", program, *overrides], check=True)


def test_the_recipes_that_come_along_pass():
    check_arguments(load_recipe("digits"), Role())


def test_a_module_that_an_installed_one_hides_is_named(
    code: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("statistics", "time"):
        (code / f"{name}.py").write_text(CODE)
    (code / "yaml").mkdir()
    (code / "yaml" / "__init__.py").touch()
    check_arguments(recipe_of(code), Role())
    told = "\n".join(caplog.messages)
    for name, by in (("statistics.py", "statistics.py"), ("yaml/__init__.py", "yaml/__init__.py")):
        assert re.search(rf"{code}/{name} is hidden by /.*/{by}, .* rename it if", told)
    assert f"{code}/time.py is hidden by a module inside Python" in told
    assert "mine.py" not in told
    check_arguments(recipe_of(code), Role())
    assert len(caplog.messages) == 3  # once
    with pytest.raises(TargetError, match=r"'statistics\.Model' does not exist"):
        check_arguments(recipe_of(code, **model("statistics.Model", num_classes=3)), Role())
    there = Role(env={"PYTHONPATH": "/opt"})  # with other packages
    check_arguments(recipe_of(code, **model("statistics.Model", num_classes=3)), there)
