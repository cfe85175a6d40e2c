"""What differs between two recipes."""

from __future__ import annotations

from headrace.recipe.difference import Change, differences
from headrace.recipe.load import load_recipe


def test_each_key_that_differs_is_told_with_both_values() -> None:
    before = load_recipe("digits")
    changed = ("trainer.max_epochs=3", "model.learning_rate=0.5", "+model.dropout=0.1")
    after = load_recipe("digits", [each.lstrip("+") for each in changed])
    assert differences(before, after) == (
        Change(key="model.learning_rate", before="0.003", after="0.5"),
        Change(key="trainer.max_epochs", before=str(before.trainer.max_epochs), after="3"),
        Change(key="model.dropout", before="", after="0.1"),
    )
    assert differences(before, before) == ()
