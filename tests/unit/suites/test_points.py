"""Trials of a suite: their points, names, conditions, and which are refused."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import RecipeError, TargetError, UserError
from headrace.files.atomic import write_json
from headrace.recipe.base import to_json
from headrace.recipe.load import load_recipe, load_site, source_of
from headrace.recipe.suite import SuiteSpec
from headrace.suites import points
from headrace.suites.axes import Condition, axes_of, check_keys, samples, texts
from headrace.suites.points import TrialMaker, count, expand, trial_recipe
from headrace.suites.records import Trial
from headrace.suites.values import as_overrides, parse

FOLDED = ("dataset.folds=3", "dataset.splits={train: 0.8, val: 0, test: 0.2}", "suite.folds=true")
KEYS = ("abcdefg", "abcdefghijklmnop")
DIGITS = load_recipe("digits")
SITE = load_site("laptop")


def suite_of(**suite):
    return DIGITS.model_copy(update={"suite": SuiteSpec.model_validate(suite)})


def checked(*overrides: str, source: str = "/data"):
    words = (f"dataset.source={source}", *overrides)
    site = SITE.model_copy(update={"allowed_sources": ("/",), "allowed_outputs": ("/",)})
    return points.checked(load_recipe("digits", words), source_of("digits", words), site)


def search(key: str, words: str) -> str:
    return f'search={{space: {{"{key}": "{words}"}}, trials: 3}}'


def names(**suite) -> list[str]:
    return [trial.name for trial in expand(suite_of(**suite))]


VALUES = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)


@settings(deadline=None, max_examples=50)
@given(
    grid=st.dictionaries(st.sampled_from(["model.a", "model.b", "data.c"]), VALUES),
    zipped=st.integers(0, 3),
    seeds=st.none() | st.integers(1, 3) | VALUES,
    skip=st.sampled_from([(), ("data.c > 4",), ("number_of == 1 and seed == 8",)]),
)
def test_the_count_is_that_of_the_trials(grid, zipped, seeds, skip):
    zips = {"model.x": [*range(zipped)], "model.y": [*"abc"[:zipped]]} if zipped else {}
    points_ = [{"number_of": 1}, {"number_of": 2}]
    recipe = suite_of(grid={**grid, "data.c": [3, 5]}, zip=zips, points=points_, seeds=seeds)
    recipe = recipe.model_copy(update={"suite": recipe.suite.model_copy(update={"skip": skip})})
    trials = list(expand(recipe))
    assert count(recipe) == len(trials)
    assert [trial.number for trial in trials] == list(range(1, len(trials) + 1))
    assert len({trial.name for trial in trials}) == len(trials)
    assert trials == list(expand(recipe))
    for group, same in itertools.groupby(trials, key=lambda trial: trial.group):
        same = list(same)
        assert same[0].number == group
        assert len({str({**each.values, "seed": 0}) for each in same}) == 1
    if not skip:
        sizes = [*map(len, {**grid, "data.c": "ab"}.values()), zipped or 1, 2]
        assert len(trials) == math.prod(sizes) * (
            len(seeds) if isinstance(seeds, list) else seeds or 1
        )


def test_points_are_the_product_and_the_last_key_is_fastest():
    trials = list(expand(suite_of(grid={"a": [1, 2]}, zip={"b": [3, 4], "c": [5, 6]}, seeds=2)))
    assert [trial.values for trial in trials[:4]] == [
        {"a": 1, "b": 3, "c": 5, "seed": 7},
        {"a": 1, "b": 3, "c": 5, "seed": 8},
        {"a": 1, "b": 4, "c": 6, "seed": 7},
        {"a": 1, "b": 4, "c": 6, "seed": 8},
    ]
    assert [trial.group for trial in trials] == [1, 1, 3, 3, 5, 5, 7, 7]


def test_every_point_is_repeated_for_every_fold():
    trials = list(expand(load_recipe("digits", [*FOLDED, 'suite.grid={"seed": [1, 2]}'])))
    assert [trial.values["data.fold"] for trial in trials] == [0, 1, 2, 0, 1, 2]
    assert [trial.group for trial in trials] == [1, 1, 1, 4, 4, 4]
    assert trials[1].name == "seed=1,fold=1"


def test_a_recipe_that_evaluates_each_fold_names_none_itself():
    recipe = load_recipe("digits", [*FOLDED, "evaluate.split=val"])
    assert recipe.data.fold is None
    words = [*FOLDED, "evaluate.split=val"]
    assert trial_recipe(source_of("digits", words), {"data.fold": 2}).data.fold == 2
    with pytest.raises(RecipeError, match=r"suite\.folds goes with dataset\.folds"):
        load_recipe("digits", ["suite.folds=true"])


def test_ten_million_points_are_counted_and_not_built():
    seven, sixteen = (suite_of(grid={key: [*range(10)] for key in keys}) for keys in KEYS)
    with pytest.raises(RecipeError, match=r"has 10,000,000 trials; at most 100,000"):
        count(seven)
    with pytest.raises(RecipeError, match="has 10,000,000,000,000,000 trials"):  # never built
        next(expand(sixteen))


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        ({"grid": {"model.lr": [1e-3, 0.5], "data.x": [1]}}, ["lr=0.001", "lr=0.5"]),
        ({"grid": {"a.lr": [1, 2], "b.lr": [3]}}, ["lr=1", "lr=2"]),
        ({"zip": {"a.lr": [1, 2], "b.lr": [3, 4]}}, ["a.lr=1,b.lr=3", "a.lr=2,b.lr=4"]),
        ({"grid": {"m": [{"_target_": "x.Y"}, None]}}, ["m=Y", "m=null"]),
        ({"grid": {"m": ["../a b", [1, 2]]}}, ["m=.._a_b", "m=_1,_2"]),
        ({"points": [{"a": 1}, {"a": 1, "b": 2}]}, ["trial-1", "b=2"]),
        ({"grid": {"a": [3]}}, ["trial-1"]),
        ({"grid": {"m": ["x" * 300 + "1", "x" * 300 + "2"]}}, None),
        (
            {"grid": {"a.b": [0.12345]}, "seeds": 2, "trial_name": "b{a.b:.2f}-s{seed}-{number}"},
            ["b0.12-s7-1", "b0.12-s8-2"],
        ),
    ],
)
def test_names_tell_what_varies(suite, expected):
    found = names(**suite)
    assert len(set(found)) == len(found)
    assert max(map(len, found)) < 130
    assert expected in (None, found)


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        ({"trial_name": "x"}, "gives the name 'x' to the trials 1 and 2"),
        ({"trial_name": "{sed}"}, r"(?s)'sed' is not a key.*Did you mean 'seed'"),
        ({"trial_name": "{a:%%}"}, "cannot be filled in"),
        ({"trial_name": "{a:99999999}"}, "too wide"),
        ({"trial_name": "{"}, "cannot be filled in"),
        ({"grid": {"a": [1, 1]}}, "Trials 1 and 2 are the same"),
        ({"skip": ["a > 0"]}, "leaves out all 2 trials"),
        ({"priority": "sed"}, r"(?s)'sed' is not a key.*Did you mean 'seed'"),
        ({"priority": "[a]"}, r"of suite.priority gives \[1\], which is not a number"),
    ],
)
def test_bad_names_and_conditions_are_told(suite, message):
    with pytest.raises(RecipeError, match=message):
        list(expand(suite_of(**{"grid": {"a": [1, 2]}, **suite})))


def test_without_trials_it_says_how_to_name_some():
    for recipe in (DIGITS, suite_of(retries=1)):
        with pytest.raises(RecipeError, match="names no trials"):
            count(recipe)


def test_points_that_are_added_go_on_after_the_others():
    recipe = suite_of(grid={"model.lr": [1, 2]}, seeds=2)
    known = list(expand(recipe))
    maker = TrialMaker(recipe, reversed(known))
    urgent = list(expand(suite_of(grid={"model.lr": [1, 2]}, priority="model.lr > 1")))
    assert [trial.priority for trial in urgent] == [0, 1]
    added = list(maker.trials({"model.lr": 3, "model.width": 8}))
    assert [trial.number for trial in added] == [5, 6]
    assert [trial.group for trial in added] == [5, 5]
    assert added[0].name == "lr=3,width=8,seed=7"
    with pytest.raises(RecipeError, match="Trials 3 and 7 are the same"):
        list(maker.trials({"model.lr": 2}))


def test_a_sampler_may_propose_a_point_twice():
    recipe = suite_of(search={"space": {"a": [1, 2]}, "trials": 4}, seeds=2)
    assert count(recipe) == 8
    assert list(expand(recipe)) == []
    maker = TrialMaker(recipe)
    found = [*maker.trials({"a": 1}, proposal=0), *maker.trials({"a": 1}, proposal=1)]
    assert [trial.name for trial in found] == [
        "a=1,seed=7",
        "a=1,seed=8",
        "a=1,seed=7-3",
        "a=1,seed=8-4",
    ]
    assert [trial.proposal for trial in found] == [0, 0, 1, 1]


def test_interpolations_of_the_recipe_follow_the_values_of_a_trial(tmp_path, monkeypatch):
    monkeypatch.setenv("DATA_ROOT", "/da${t}a")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "seed: 1\n"
        "dataset: {name: d, source: '${oc.env:DATA_ROOT}/x', labels: folders}\n"
        "model: {_target_: a.Net, width: '${seed}', out: 'n${trainer.max_epochs}'}\n"
        "trainer: {max_epochs: '${oc.decode:${oc.env:EPOCHS,4}}'}\n"
        "evaluate: null\n"
        "suite: {grid: {seed: [1, 2]}}\n"
    )
    source = source_of(str(path))
    assert "suite" not in source
    monkeypatch.setenv("DATA_ROOT", "/elsewhere")
    recipe = trial_recipe(source, {"seed": 5, "model.bias": False})
    assert recipe.suite is None
    assert recipe.dataset.source == "/da${t}a/x"
    config = {"_target_": "a.Net", "width": 5, "out": "n4", "bias": False}
    assert recipe.model.as_config() == config
    assert trial_recipe(source, {"trainer.max_epochs": 9}).model.as_config()["out"] == "n9"
    with pytest.raises(RecipeError, match="an interpolation"):
        trial_recipe(source, {"seed": "${oc.env:HOME}"})
    with pytest.raises(RecipeError, match="is malformed"):
        trial_recipe(source, {"model..x": 1})


def test_a_suite_that_can_run_is_checked():
    grid = 'suite.grid={"model.learning_rate": [0.1, 0.2], "trainer.max_epochs": [1, 2]}'
    assert checked(grid).suite.grid["trainer.max_epochs"] == (1, 2)


@pytest.mark.parametrize("name", ["grid", "zip", "points"])
@pytest.mark.parametrize(
    ("key", "value"),
    [(f"[{name}]", "x") for name in ("code", "dataset", "name", "pack", "pack_role", "suite")]
    + [(key, "x") for key in ("code", "code[0]", "code.0", "[code][0]", "dataset[source]", "name")]
    + [
        (key, "x")
        for key in ("[dataset].source", "[dataset][source]", "pack[target]", "suite[file]")
    ]
    + [(key, "cpu") for key in ("train.role", "train[role]", "[train].role", "[train][role]")]
    + [("train", {"role": "cpu"}), ("[train]", {"role": "cpu"})],
)
def test_no_spelling_of_a_key_makes_trials_differ_where_they_cannot(name, key, value):
    part = ({key: value},) if name == "points" else {key: (value,)}
    with pytest.raises(RecipeError, match="cannot differ"):
        check_keys(axes_of(suite_of(**{name: part}).suite))


@pytest.mark.parametrize("other", ["model[a]", "[model].a", "[model][a]", "model.a"])
def test_no_spelling_of_a_key_sets_it_twice(other):
    for parts in ({"grid": {other: (1,)}}, {"zip": {"model.a": (1,), other: (2,)}}):
        suite = suite_of(**parts, points=({"model.a": 1},))
        with pytest.raises(RecipeError, match="set by two parts"):
            check_keys(axes_of(suite.suite))


@pytest.mark.parametrize(
    ("override", "message", "error"),
    [
        ('grid={"trainer.max_epoch": [1]}', "Did you mean 'max_epochs'", RecipeError),
        ('grid={"trainer.max_epochs": [1, 0]}', r"≥ 1, .*\(got 0\)", RecipeError),
        ('grid={"model.learning_rte": [1.0]}', "learning_rate", TargetError),
        ('grid={"model.learning_rate": [1.0, two]}', "takes one float", TargetError),
        ('zip={"seed": [1, -1]}', "seed", RecipeError),
        ('points=[{"seed": 1}, {"sed": 2}]', "Did you mean 'seed'", RecipeError),
        ('grid={"data.global_batch_size": [64, 0]}', "give an integer .≥ 1", RecipeError),
        ('grid={"dataset.labels": [none]}', r"(?s)cannot differ.*packed dataset", RecipeError),
        ('grid={"code": [["/x"]]}', "cannot differ", RecipeError),
        ('grid={"train.role": [cpu]}', r"(?s)cannot differ.*lease", RecipeError),
        (search("model.learning_rat", "interval(0, 1)"), "learning_rate", TargetError),
        (search("trainer.max_epochs", "range(0, 3)"), "give an integer .≥ 1", RecipeError),
        (search("trainer.max_epochs", "range(3, 0)"), "names no value", RecipeError),
        (f"priority=-sed suite.{search('seed', 'range(0, 3)')}", "'sed' is not a key", RecipeError),
        ('search={space: {"seed": "interval(1, 2)"}}', "--trials", RecipeError),
        ('zip={a: [1], b: [1, 2]}', "equally many", RecipeError),
        ('grid={"model._target_": ["os.system"]}', "does not allow", UserError),
    ],
)  # fmt: skip
def test_what_no_trial_can_be_is_refused_before_anything_runs(override, message, error):
    words = (f"suite.{word}" for word in override.split(" suite."))
    with pytest.raises(error, match=message):
        checked("trainer.monitor=val_loss", *words)


def test_one_key_in_two_parts_is_refused():
    with pytest.raises(RecipeError, match="'seed' is set by two parts"):
        checked("suite.seeds=2", 'suite.grid={"seed": [1]}')
    with pytest.raises(RecipeError, match="search excludes grid"):
        checked('suite.grid={"seed": [1]}', "suite.search={space: {seed: [1, 2]}, trials: 2}")


def test_points_of_unlike_keys_are_not_mixed():
    """One has what another has not: what is checked is a trial, never a part of two."""
    scripts = [
        {"train.script": "a.py"},
        {"train.script": None, "train.module": "json.tool"},
        {"train.command": ["true"]},
    ]
    axes = axes_of(SuiteSpec(points=scripts, grid={"seed": [1, 2]}))
    trials = [{**each, "seed": seed} for each in scripts for seed in (1, 2)]
    assert all(each in trials for each in (*samples(axes), *texts(axes)))
    assert [each for each in scripts if {**each, "seed": 1} not in [*texts(axes)]] == []


@pytest.mark.parametrize("how", ["grid", "zip", "points", "file"])
def test_paths_that_trials_vary_lead_to_where_the_suite_was_started(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    key, values = "train.script", ["a.py", "b.py", "~/c.py", "/opt/d.py"]
    suite = SuiteSpec.model_validate(
        {"points": [{key: each} for each in values]} if how == "points"
        else {"file": "p.csv"} if how == "file" else {how: {key: values}}
    )  # fmt: skip
    (tmp_path / "p.csv").write_text("\n".join([key, *values]))
    (axis,) = axes_of(points.with_paths(suite))
    found = [each[key] for each in axis]
    assert found == [str(tmp_path / "a.py"), str(tmp_path / "b.py"), "~/c.py", "/opt/d.py"]


def test_files_of_commands_that_trials_vary_lead_there_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").touch()
    suite = SuiteSpec(grid={"train.command": [["bash", "a.sh"], ["bash", "b.sh"]]})
    (axis,) = axes_of(points.with_paths(suite))
    first, second = (each["train.command"] for each in axis)
    assert (first, second) == (["bash", str(tmp_path / "a.sh")], ["bash", "b.sh"])


def test_a_run_that_trials_begin_with_is_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = {"train.init_from": ["run-1:best"], "model.name": ["a.py"]}
    (tmp_path / "a.py").touch()
    assert points.with_paths(SuiteSpec(grid=grid)) == SuiteSpec(grid=grid)


def test_a_file_gives_points_typed_as_in_yaml(tmp_path):
    file = tmp_path / "points.csv"
    file.write_text(
        "model.learning_rate,trainer.max_epochs,trainer.gradient_clip_val,trainer.precision\n"
        '1e-3,3,,bf16-mixed\n"0.5", 4,null,"32-true"\n\n'
    )
    recipe = checked(f"suite.file={file}")
    assert recipe.suite.file is None
    assert recipe.suite.points == (
        {
            "model.learning_rate": 0.001,
            "trainer.max_epochs": 3,
            "trainer.precision": "bf16-mixed",
        },
        {
            "model.learning_rate": 0.5,
            "trainer.max_epochs": 4,
            "trainer.gradient_clip_val": None,
            "trainer.precision": "32-true",
        },
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("", "begins with"),
        ("seed,\n1,2\n", "begins with"),
        (",".join(f"k{i}" for i in range(300)) + "\n", "300 columns; at most 256"),
        ("seed,seed\n1,2\n", "two columns of 'seed'"),
        ("seed\n", "a header and no row"),
        ("seed\n1,2\n", "2 values in line 2, and 1 columns"),
        ("seed\n{a\n", "line 2: The value of the override .* cannot be read"),
        ("seed\n1\nx\n", "seed"),
        (b"seed\n\xff\xfe\n", "UTF-8"),
        ("sed\n1\n", "Did you mean 'seed'"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_by_its_line(tmp_path, text, message):
    file = tmp_path / "points.csv"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecipeError, match=message):
        checked(f"suite.file={file}")


def test_a_file_of_points_lies_where_the_site_lets_recipes_read(tmp_path):
    file = tmp_path / "points.csv"
    file.write_text("seed\n1\n")
    words = (f"suite.file={file}", f"dataset.source={tmp_path}/raw")
    site = SITE.model_copy(update={"allowed_sources": (f"{tmp_path}/raw",)})
    with pytest.raises(RecipeError, match=r"suite\.file leads to"):
        points.checked(load_recipe("digits", words), source_of("digits", words), site)


@pytest.mark.slow
def test_no_path_among_many_leads_where_the_site_does_not_let_recipes_go(monkeypatch):
    monkeypatch.setattr("headrace.suites.axes.MAX_CHECKED", 20)
    many = [f"/data/w{number}.ckpt" for number in range(40)]
    many[24] = "/else/x.ckpt"
    axis = [{"train.init_from": each} for each in many]
    assert {"train.init_from": many[24]} not in samples([axis])
    words = ("dataset.source=/data", f'suite.grid={{"train.init_from": {json.dumps(many)}}}')
    site = SITE.model_copy(update={"allowed_sources": ("/data",)})
    with pytest.raises(RecipeError, match=r"train\.init_from leads to /else/x\.ckpt"):
        points.checked(load_recipe("digits", words), source_of("digits", words), site)


def test_trials_are_records_that_come_back():
    trial = next(expand(suite_of(grid={"a": [1.5]})))
    assert Trial.model_validate_json(trial.model_dump_json()) == trial


@pytest.mark.parametrize(
    "words",
    [
        ["+model.dims={0: 1},{0: 2, 1: 3}"],
        ["+model.dims={1.5: 1},{true: 2, a: 3}"],
        ["+model.dims={0: 1},{0: 2}", "suite.seeds=2"],
    ],
)
def test_mappings_of_a_sweep_keep_the_types_of_their_keys(words, tmp_path):
    """From the command line over the folder of the run to the recipes of its trials."""
    wanted = list(dict.fromkeys(map(repr, parse(words)[1]["grid"]["model.dims"])))
    overrides = (*parse(words)[0], *as_overrides(parse(words)[1]))
    recipe = load_recipe("digits", overrides)
    write_json(tmp_path / "source.json", to_json(source_of("digits", overrides)))
    source = json.loads((tmp_path / "source.json").read_text())
    again = type(recipe).model_validate_json(recipe.model_dump_json(by_alias=True))
    found = []
    for trial in expand(again):
        kept = Trial.model_validate_json(trial.model_dump_json())
        made = trial_recipe(source, kept.values)
        read = type(recipe).model_validate_json(made.model_dump_json(by_alias=True))
        found.append(read.model.as_config()["dims"])
    assert list(dict.fromkeys(map(repr, map(to_json, found)))) == wanted
    assert all(not isinstance(key, str) or key == "a" for each in found for key in each)


KNOWN = {"model.depth": 4, "seed": 3, "model.kind": "adam", "data.x[0].y": 2, "none": None}


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
    assert Condition(text).holds(KNOWN.__getitem__) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("model.depth > 3", 1.0), ("10 * (seed == 4) - model.depth / 8", -0.5), ("-seed", -3.0)],
)
def test_a_condition_may_give_a_number(text, expected):
    assert Condition(text, "suite.priority").number(KNOWN.__getitem__) == expected


@pytest.mark.parametrize("text", ["model.kind", "none", "[1, 2]", "1e308 * 10"])
def test_a_priority_that_is_no_number_is_told(text):
    with pytest.raises(RecipeError, match=r"of suite.priority gives .*, which is not a number"):
        Condition(text, "suite.priority").number(KNOWN.__getitem__)


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
        if key not in KNOWN:
            raise RecipeError(f"'{key}' is no key")
        return KNOWN[key]

    with pytest.raises(RecipeError, match=message):
        Condition(text).holds(value_of)
