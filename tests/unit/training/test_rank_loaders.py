"""Loaders of a model's own are refused in words, not left aside."""

from __future__ import annotations

import pytest
from lightning.pytorch import LightningModule

from headrace.errors import UserError
from headrace.training.rank import _check_loaders


class WithLoader(LightningModule):
    def train_dataloader(self):
        return []


def test_a_model_with_a_loader_of_its_own_is_refused():
    _check_loaders(LightningModule())
    with pytest.raises(UserError, match="WithLoader defines 'train_dataloader'") as caught:
        _check_loaders(WithLoader())
    assert "train.script" in caught.value.hint
