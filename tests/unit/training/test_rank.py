"""What a rank refuses in words before it trains: loaders of a model's own, and wrong metrics."""

from __future__ import annotations

import pytest
from lightning.pytorch import LightningModule

from headrace.data.instantiate import Allowed
from headrace.errors import UserCodeError, UserError
from headrace.recipe.evaluate import EvaluateSpec
from headrace.training.rank import _check_loaders, _check_metrics


class WithLoader(LightningModule):
    def train_dataloader(self):
        return []


def test_a_model_with_a_loader_of_its_own_is_refused():
    _check_loaders(LightningModule())
    with pytest.raises(UserError, match="WithLoader defines 'train_dataloader'") as caught:
        _check_loaders(WithLoader())
    assert "train.script" in caught.value.hint


def test_a_metric_that_cannot_be_made_is_told_before_hours_of_training():
    top2 = {"_target_": "torchmetrics.classification.MulticlassAccuracy", "top_k": 2}
    allowed = Allowed(listed=("torchmetrics",))
    _check_metrics(None, allowed)
    _check_metrics(EvaluateSpec(metrics={"top2": {**top2, "num_classes": 3}}), allowed)
    with pytest.raises(UserCodeError, match="`num_clases`") as caught:
        _check_metrics(EvaluateSpec(metrics={"top2": {**top2, "num_clases": 3}}), allowed)
    assert "'evaluate.metrics.top2'" in caught.value.hint
