"""How far trials come by the rule of their pruner."""

from __future__ import annotations

import statistics

import pytest

from headrace.recipe.load import load_recipe
from headrace.recipe.recipe import Recipe
from headrace_foresight.pruning import rule_shares


def search(pruner: str, trials: int = 40) -> Recipe:
    """A search with twelve validations a trial."""
    space = "{model.learning_rate: 'interval(1e-4, 1e-1)'}"
    suite = f"{{search: {{space: {space}, trials: {trials}, pruner: {pruner}}}}}"
    words = (f"+suite={suite}", "trainer.max_epochs=24", "trainer.val_every_epochs=2")
    return load_recipe("digits", (*words, "trainer.monitor=val/accuracy"))


def test_successive_halving_ends_three_of_four_after_the_first_validation():
    shares = rule_shares(search("asha"), 2)
    first = shares.count(1 / 12) / len(shares)
    assert first == pytest.approx(0.75, abs=0.1)
    assert set(shares) <= {1 / 12, 4 / 12, 1.0}


def test_the_median_rule_spares_the_first_five():
    assert set(rule_shares(search("median", 5), 1)) == {1.0}
    later = rule_shares(search("median"), 2)
    assert 0.3 < statistics.mean(later) < 0.7


def test_hyperband_ends_some():
    assert 0.2 < statistics.mean(rule_shares(search("hyperband"), 2)) < 0.8


@pytest.mark.parametrize("pruner", ["none", "{_target_: optuna.pruners.NopPruner}"])
def test_nothing_is_known_of_other_rules(pruner: str):
    assert rule_shares(search(pruner), 2) == ()


def test_no_trial_of_a_grid_is_ended():
    assert rule_shares(load_recipe("digits", ("+suite={grid: {seed: [1, 2]}}",)), 2) == ()
