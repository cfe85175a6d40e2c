"""What a model's source tells is told before anything starts, and nothing where it is unsure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import RecipeError
from headrace.recipe.fit import check_evaluation, check_training
from headrace.recipe.load import load_site, parse
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site

TRAINED = """
    def training_step(self, batch, index):
        self.log("train_loss", 1.0)
    def configure_optimizers(self): ...
"""
JUDGED = """
    def validation_step(self, batch, index):
        self.log(name="val_loss", value=1.0)
        self.log_dict({"val_acc": 1.0, "val_f1": 1.0})
"""
SCORED = "    def forward(self, batch): ...\n"
TESTED = "    def test_step(self, batch, index): ...\n"
TEST = {"step": "test", "task": "custom"}


def recipe_of(folder: Path, body: str, **changes: Any) -> Recipe:
    """A recipe whose model has this body; `head` and `base` are other parts of its module."""
    head, base = changes.pop("head", ""), changes.pop("base", "LightningModule")
    text = f"from lightning.pytorch import LightningModule\n{head}\nclass Mine({base}):\n{body}\n"
    (folder / "mine.py").write_text(text)
    content = {
        "name": "r",
        "code": [str(folder)],
        "dataset": {"name": "d", "source": str(folder)},
        "model": {"_target_": "mine.Mine"},
        **changes,
    }
    return parse(Recipe, content, "test")


def site_of(folder: Path) -> Site:
    places = {"allowed_code": (str(folder),), "allowed_sources": ("/",)}
    return load_site("laptop").model_copy(update=places)


def check(folder: Path, body: str, **changes: Any) -> None:
    check_training(recipe_of(folder, body, **changes), site_of(folder))


@pytest.mark.parametrize(
    ("body", "changes", "words"),
    [
        (TRAINED + TESTED, {}, "neither predict_step nor forward.*evaluate.step: test and"),
        (TRAINED, {}, "neither predict_step nor forward.*Write predict_step"),
        (TRAINED + SCORED, {"evaluate": TEST}, "Mine has no test_step.*evaluate.step: predict"),
        (
            TRAINED + TESTED + "    def on_test_epoch_end(self): self.ended = 1",
            {"evaluate": TEST},
            "on_test_epoch_end, which does not run",
        ),
        (SCORED, {}, "Mine has no training_step, which training calls.*Write one"),
        (
            SCORED + TRAINED.replace("configure_optimizers", "configure_optimisers"),
            {},
            "no configure_optimizers.*mean 'configure_optimisers'",
        ),
        (TRAINED + SCORED + "    def val_dataloader(self): ...", {}, "defines 'val_dataloader'"),
        (
            TRAINED + SCORED + "    def validation_epoch_end(self, outputs): ...",
            {},
            "Write on_validation_epoch_end in its place",
        ),
        (
            TRAINED + JUDGED + SCORED,
            {"trainer": {"monitor": "val_los"}},
            "trainer.monitor names 'val_los', which the model Mine does not log.*mean 'val_loss'",
        ),
        (
            TRAINED + JUDGED + SCORED,
            {
                "trainer": {
                    "callbacks": [
                        {
                            "_target_": "lightning.pytorch.callbacks.EarlyStopping",
                            "monitor": "val/acc",
                        }
                    ]
                }
            },
            r"trainer.callbacks\[0\].monitor names 'val/acc'.*mean 'val_acc'",
        ),
        (
            TRAINED + TESTED.replace("...", 'self.log("test_acc", 1.0)'),
            {"evaluate": {**TEST, "min_metrics": {"test_ac": 0.5}}},
            "evaluate.min_metrics names 'test_ac'.*mean 'test_acc'",
        ),
        (
            TRAINED + SCORED,
            {"evaluate": {"min_metrics": {"acuracy": 0.5}}},
            "evaluate.min_metrics names 'acuracy'.*mean 'accuracy'",
        ),
    ],
)
def test_what_cannot_come_to_a_good_end_is_told_before(tmp_path, body, changes, words):
    with pytest.raises(RecipeError, match=f"(?s){words}"):
        check(tmp_path, body, **changes)


def test_an_evaluation_alone_is_told_the_same_but_for_what_only_training_needs(tmp_path):
    site = site_of(tmp_path)
    with pytest.raises(RecipeError, match="neither predict_step nor forward"):
        check_evaluation(recipe_of(tmp_path, TRAINED + TESTED), site)
    check_evaluation(recipe_of(tmp_path, SCORED, trainer={"monitor": "val_loss"}), site)


MONITOR = {"trainer": {"monitor": "val_loss"}}
OTHER = "class Other(LightningModule):\n" + TRAINED + JUDGED + SCORED


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        (TRAINED + JUDGED + SCORED, MONITOR),
        (TRAINED + TESTED, {"evaluate": TEST}),
        (TRAINED + TESTED, {"evaluate": None}),
        (TRAINED + SCORED, {"trainer": {"monitor": "train_loss_epoch"}}),
        # from a base, a mix-in, or put in later
        ("    ...", {"head": OTHER, "base": "Other", **MONITOR}),
        ("    ...", {"base": "Unknown", "head": "from elsewhere import Unknown"}),
        ("    ...", {"head": "from lightning.pytorch.demos.boring_classes import BoringModel",
                     "base": "BoringModel"}),
        ("    pass\nMine.forward = print", {"head": "setattr(LightningModule, 'a', 1)"}),
        (TRAINED + "    def __init__(self):\n        self.forward = print", {}),
        (TRAINED + "    def __call__(self, batch): ...", {}),
        # names that are not written out, or come from elsewhere
        (TRAINED + SCORED + "    def on_x(self): self.log(f'{1}_loss', 1)", MONITOR),
        (TRAINED + SCORED + "    def on_x(self): self.log_dict(self.metrics)", MONITOR),
        (TRAINED + SCORED + "    def on_x(self): self.log_dict({**self.metrics})", MONITOR),
        (TRAINED + SCORED + "    def on_x(self): note(self)", MONITOR),
        (TRAINED + SCORED + "    def on_x(model): model.log('val_loss', 1)", MONITOR),
        (TRAINED + SCORED + "    def on_x(self): note(self.log)", MONITOR),
        (
            TRAINED + SCORED,
            {
                "trainer": {
                    "monitor": "lr-Adam",
                    "callbacks": [
                        {"_target_": "lightning.pytorch.callbacks.LearningRateMonitor"}
                    ],
                }
            },
        ),
        (
            TRAINED + SCORED,
            {
                "trainer": {
                    "callbacks": [
                        {
                            "_target_": "lightning.pytorch.callbacks.EarlyStopping",
                            "monitor": "nothing",
                            "strict": False,
                        }
                    ]
                }
            },
        ),
    ],
)  # fmt: skip
def test_what_may_work_is_not_refused(tmp_path, body, changes):
    check(tmp_path, body, **changes)
