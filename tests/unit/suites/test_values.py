"""Hydra's multirun words on the command line."""

from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution as Choices
from optuna.distributions import FloatDistribution as Float
from optuna.distributions import IntDistribution as Int

from headrace.errors import RecipeError
from headrace.recipe.load import load_recipe
from headrace.suites.values import as_overrides, domain_of, ends_of, parse


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("model.lr=1e-3,1e-2", [0.001, 0.01]),
        ("+model.lr=1,2", [1, 2]),
        ("model.lr=range(0,3)", [0, 1, 2]),
        ("model.lr=range(0,1,step=0.25)", [0, 0.25, 0.5, 0.75]),
        ("model.lr=choice(adam, sgd)", ["adam", "sgd"]),
        ("model.lr='a,b',\"c d\"", ["a,b", "c d"]),
        ("model.lr=true,null", [True, None]),
        ("model.lr=[1,2],[3]", [[1, 2], [3]]),
        ("model.lr={a: 1},{b: 'x'}", [{"a": 1}, {"b": "x"}]),
        ("model.lr=sort(3,1,2)", [1, 2, 3]),
        ("model.lr=str(1,2)", ["1", "2"]),
        ("model.lr=s3://a/b,/c/d", ["s3://a/b", "/c/d"]),
    ],
)
def test_sweeps_are_a_grid(word, values):
    assert parse([word]) == ((), {"grid": {"model.lr": values}})


@pytest.mark.parametrize(
    "word",
    [
        "model.lr=1e-3",
        "model.sizes=[1, 2]",
        "dataset.splits={train: 0.5, test: 0.5}",
        "model.note='a,b'",
        "~model.lr",
        "+model.note=f(x)=y",
        "model.note=x#y (z)",
    ],
)
def test_single_values_are_ordinary_overrides(word):
    assert parse([word]) == ((word,), {})


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.lr=glob(*)", "glob names files"),
        ("model.lr=shuffle(1,2)", "another order each time"),
        ("model.lr=1,", "mismatched input"),
        ("model.lr=range(1,2,step=0)", "step not 0"),
        ("model.lr=range(2,1)", "names no value"),
        ("model.lr=range(0,10000000)", "has 10,000,000 trials; at most 100,000"),
        ("model.lr=choice(range(1,3),5)", "mismatch"),
        ("model.lr", "not of the form key=value"),
        ("seed=interval(1,5)", "no values one by one"),
    ],
)
def test_what_is_no_sweep_is_told(word, message):
    with pytest.raises(RecipeError, match=message):
        parse([word])


def test_values_of_seed_are_repeats_and_a_grid_too_large_is_counted():
    assert parse(["seed=range(0,3)", "model.a=1,2"])[1] == {
        "seeds": [0, 1, 2],
        "grid": {"model.a": [1, 2]},
    }
    words = [f"model.{name}=range(0,100)" for name in "abc"]
    with pytest.raises(RecipeError, match="has 10,000,000 trials"):
        parse([*words, "seed=range(0,10)"])
    with pytest.raises(RecipeError, match=r"'model\.a' is given twice"):
        parse(["model.a=1,2", "model.a=3,4"])


def test_ten_thousand_values_of_a_key_are_not_too_many():
    seeds = load_recipe("digits", as_overrides(parse(["seed=range(0,10000)"])[1])).suite.seeds
    assert seeds == tuple(range(10_000))


def test_with_an_interval_all_are_the_space_of_a_sampler():
    overrides, update = parse(
        ["model.lr=tag(log, interval(1e-5, 1e-1))", "model.kind=a,b", "seed=0,1", "data.fold=2"],
        trials=30,
    )
    assert overrides == ("data.fold=2",)
    space = {"model.lr": "tag(log, interval(1e-5, 1e-1))", "model.kind": "a,b"}
    assert update == {"seeds": [0, 1], "search": {"space": space, "trials": 30}}
    suite = load_recipe("digits", [*as_overrides(update), "trainer.monitor=val_loss"]).suite
    assert suite.search.space == space
    assert suite.seeds == (0, 1)
    with pytest.raises(RecipeError, match="--trials"):
        load_recipe("digits", as_overrides(parse(["model.lr=interval(0, 1)"])[1]))


def test_sweeps_are_added_to_the_suite_that_the_recipe_has():
    words = as_overrides(parse(["model.a=1,2", "model.b=x,y"])[1])
    recipe = load_recipe("digits", ['suite.grid={"model.a": [5], "model.c": [7]}', *words])
    assert recipe.suite.grid == {"model.a": (1, 2), "model.b": ("x", "y"), "model.c": (7,)}


@pytest.mark.parametrize(
    ("words", "expected", "ends"),
    [
        ("interval(0, 1)", Float(0, 1), (0, 1)),
        ("int(interval(1, 8))", Int(1, 8), (1, 8)),
        ("tag(log, interval(1e-5, 1))", Float(1e-5, 1, log=True), (1e-5, 1)),
        ("tag(log, int(interval(1, 64)))", Int(1, 64, log=True), (1, 64)),
        ("range(1, 9)", Int(1, 8), (1, 8)),
        ("range(1, 10, 4)", Int(1, 9, step=4), (1, 9)),
        ("range(3, 0, -1)", Int(1, 3), (1, 3)),
        ("range(0, 1, step=0.25)", Float(0, 0.75, step=0.25), (0, 0.75)),
        ("choice(a, 2)", Choices(('"a"', "2")), ("a", 2)),
        (["a", None], Choices(('"a"', "null")), ("a", None)),
    ],
)
def test_words_of_a_space(words, expected, ends):
    assert domain_of("k", words) == expected
    assert ends_of(expected) == ends
    assert type(ends_of(expected)[0]) is type(ends[0]) or isinstance(expected, Float)


@pytest.mark.parametrize(
    "words",
    [
        "interval(1, 0)", "interval(0, inf)", "tag(log, interval(0, 1))", "tag(a, interval(0, 1))",
        "tag(log, range(1, 9))", "7", 7, [], "interval(", "glob(*)", "a, b,",
    ],
)  # fmt: skip
def test_wrong_words_of_a_space(words):
    with pytest.raises(RecipeError, match=r"The values of 'k' are"):
        domain_of("k", words)
