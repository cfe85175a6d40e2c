"""Conditions of `suite.skip` are judged without `eval`."""

from __future__ import annotations

import pytest

from headrace.errors import RecipeError
from headrace.suites.axes import Condition

VALUES = {"model.depth": 4, "seed": 3, "model.kind": "adam", "data.x[0].y": 2, "none": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.depth > 3 and seed == 3", True),
        ("model.depth > 4 or not seed == 3", False),
        ("1 < seed <= 3 < model.depth", True),
        ("model.kind in ['adam', 'sgd']", True),
        ("model.kind not in ('adam',)", False),
        ("model.depth * 2 - 1 >= 7 and -seed < 0 and model.depth // 3 % 2 == 1", True),
        ("none is None and none == null and true != false", True),
        ("data.x[0].y == 2", True),
        ("seed < 0 and seed / 0 > 1", False),
    ],
)
def test_conditions(text, expected):
    assert Condition(text).holds(VALUES.__getitem__) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("model.depth > 3", 1.0), ("10 * (seed == 4) - model.depth / 8", -0.5), ("-seed", -3.0)],
)
def test_a_condition_may_give_a_number(text, expected):
    assert Condition(text, "suite.priority").number(VALUES.__getitem__) == expected


@pytest.mark.parametrize("text", ["model.kind", "none", "[1, 2]", "1e308 * 10"])
def test_a_priority_that_is_no_number_is_told(text):
    with pytest.raises(RecipeError, match=r"of suite.priority gives .*, which is not a number"):
        Condition(text, "suite.priority").number(VALUES.__getitem__)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed >", "cannot be read"),
        ("seed > 'a'", "cannot be evaluated"),
        ("seed / 0 > 1", "cannot be evaluated"),
        ("model.kind * 1000000 == 1", "computes with 'adam'"),
        ("seed ** 9 > 1", r"holds 'seed \*\* 9'"),
        ("__import__('os').system('true')", "holds '__import__"),
        ("seed.__class__ == 1", "'seed.__class__' is no key"),
        ("seed[__import__('os').system('true')]", "is no key"),
        ("open('/etc/passwd')", r"holds 'open"),
        ("[x for x in seed]", "holds"),
        ("(lambda: 1)()", "holds"),
        ("(" * 600, "cannot be read"),
        ("not " * 240 + "seed == 3 and " + "-" * 30 + "1 > 2" + " " * 2000, "characters"),
        ("seed" + " + 1" * 5000, "characters"),
    ],
)
def test_what_is_no_condition_is_told(text, message):
    def value_of(key):
        if key not in VALUES:
            raise RecipeError(f"'{key}' is no key")
        return VALUES[key]

    with pytest.raises(RecipeError, match=message):
        Condition(text).holds(value_of)
