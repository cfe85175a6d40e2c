"""A model that was made is refused for what its source, if it was shown, is refused for."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import LightningModule

from headrace.data.model_steps import check_model
from headrace.errors import UserError
from headrace.recipe.recipe import Recipe

DATA = {"name": "d", "path": "/d"}
CALLBACKS = {"callbacks": [{"_target_": "mine.Callback"}]}


class Plain(LightningModule):
    def training_step(self, batch, index): ...
    def configure_optimizers(self): ...


class WithLoader(Plain):
    def train_dataloader(self):
        return []


class OfLightning1(Plain):
    def training_epoch_end(self, outputs): ...


class WithoutStep(LightningModule):
    def configure_optimizers(self): ...


def check(model: LightningModule, **changes: Any) -> None:
    content = {"name": "r", "model": {"_target_": "a.Model"}, "evaluate": None, **changes}
    check_model(model, Recipe.model_validate(content), trains=True)


def test_a_model_with_a_loader_of_its_own_is_refused_beside_other_data() -> None:
    check(Plain(), dataset=DATA)
    check(WithLoader())
    with pytest.raises(UserError, match="WithLoader defines 'train_dataloader'") as caught:
        check(WithLoader(), dataset=DATA)
    assert "leave 'dataset' and 'datamodule' out" in caught.value.hint
    with pytest.raises(UserError, match="the model Plain has no train_dataloader"):
        check(Plain())


def test_a_model_that_lightning_cannot_train_is_refused_unless_callbacks_may_change_it() -> None:
    with pytest.raises(UserError, match="WithoutStep has no training_step"):
        check(WithoutStep(), dataset=DATA)
    check(WithoutStep(), dataset=DATA, trainer=CALLBACKS)
    with pytest.raises(UserError, match="has training_epoch_end, which Lightning 2"):
        check(OfLightning1(), dataset=DATA)
