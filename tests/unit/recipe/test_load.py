"""Recipes and sites: overrides, interpolation, and what a wrong key is answered with."""

from __future__ import annotations

import json
import os
import re
import traceback
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace.errors import RecipeError, SiteError, UserError
from headrace.files.atomic import write_json, write_record
from headrace.recipe import yaml_text
from headrace.recipe.base import Target
from headrace.recipe.difference import flattened
from headrace.recipe.interpolation import with_environment
from headrace.recipe.load import (
    BUILT_IN,
    available,
    load_recipe,
    load_site,
    locate,
    parse,
    recipe_from,
    site_now,
    source_of,
    with_kept,
    written,
)
from headrace.recipe.site import Site

MINIMAL = """
dataset:
  name: d
  source: /somewhere
model: {_target_: torch.nn.Linear, in_features: 1, out_features: 1}
"""


@pytest.fixture
def recipe_file(tmp_path):
    def write(text: str = MINIMAL, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_built_in_recipe_and_site_load():
    recipe, site = load_recipe("digits"), load_site("laptop")
    assert recipe.model is not None
    assert recipe.train.role in site.roles
    assert recipe.pack_role in site.roles


def test_name_defaults_to_the_file(recipe_file):
    assert load_recipe(recipe_file()).name == "mine"


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("trainer.max_epochs=3", lambda r: r.trainer.max_epochs == 3),
        ("seed=5", lambda r: r.seed == 5),
        ("data.global_batch_size=1", lambda r: r.data.global_batch_size == 1),
        ("evaluate=null", lambda r: r.evaluate is None),
        ("pack.shard_bytes=2MiB", lambda r: r.pack.shard_bytes == 2 * 2**20),
        ("train.timeout=90min", lambda r: r.train.timeout == 5400.0),
        ("dataset.splits={train: 0.5, test: 0.5}", lambda r: "val" not in r.dataset.splits),
        ("+model.bias=false", lambda r: r.model.as_config()["bias"] is False),
        ("+trainer.limit_train_batches=3", lambda r: r.trainer.extra["limit_train_batches"] == 3),
        ("++model.in_features=4", lambda r: r.model.as_config()["in_features"] == 4),
        ("~model.in_features", lambda r: "in_features" not in r.model.as_config()),
        ("model.hidden=[1, 2]", lambda r: r.model.as_config()["hidden"] == [1, 2]),
    ],
)
def test_overrides(recipe_file, override, read):
    assert read(load_recipe(recipe_file(), [override]))


@pytest.mark.parametrize(
    "override", ["seed=range(0,5)", "model.lr=1e-3,1e-2", "+model.name=choice(a, b)", "seed=1,2"]
)
def test_several_values_are_a_suite(recipe_file, override):
    with pytest.raises(RecipeError, match=r"(?s)names several values.*headrace sweep"):
        load_recipe(recipe_file(), [override])


@pytest.mark.parametrize("value", ["'a,b'", '"range(1)"', "[a, b]", "{a: 1, b: 2}", "f(x) y"])
def test_texts_with_commas_have_quotes(recipe_file, value):
    assert load_recipe(recipe_file(), [f"model.note={value}"]).model is not None


def test_interpolation(recipe_file, monkeypatch):
    monkeypatch.setenv("DATA_ROOT", "/data")
    text = (
        MINIMAL.replace("/somewhere", "${oc.env:DATA_ROOT}/raw") + "seed: ${trainer.max_epochs}\n"
    )
    recipe = load_recipe(recipe_file(text + "trainer: {max_epochs: 4}\n"))
    assert recipe.dataset.source == "/data/raw"
    assert recipe.seed == 4


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ("${oc.env:A}/x", "a ${b}, 'c'/x"),
        ("${oc.env:NONE,${oc.env:A}}", "a ${b}, 'c'"),
        ("${oc.env:A}${oc.env:A}", "a ${b}, 'c'a ${b}, 'c'"),
        ("${oc.decode:${oc.env:N}}", 4),
        ("${oc.env:NONE,null}", None),
        ("${oc.env:A}-${seed}", "a ${b}, 'c'-3"),
        ("${oc.env:A_${seed}}", "three"),
        ("\\${oc.env:A}", "${oc.env:A}"),
        ("{${seed}}", "{3}"),
        ([{"x": "${oc.env:N}"}], [{"x": "4"}]),
    ],
)
def test_what_stands_in_the_environment_is_put_into_a_source(monkeypatch, value, known):
    content = {"seed": 3, "value": value}
    for name, text in {"A": "a ${b}, 'c'", "N": "4", "A_3": "three"}.items():
        monkeypatch.setenv(name, text)
    assert OmegaConf.to_container(OmegaConf.create(content), resolve=True)["value"] == known
    source = with_environment(content)
    if "A_" not in str(value):
        monkeypatch.setenv("A", "changed")
        monkeypatch.setenv("N", "changed")
    assert OmegaConf.to_container(OmegaConf.create(source), resolve=True)["value"] == known


def test_a_source_keeps_what_a_run_keeps(recipe_file, tmp_path):
    path = recipe_file(
        MINIMAL + "code: [src]\nseed: ${trainer.max_epochs}\ntrainer: {max_epochs: 2}\n"
    )
    loaded = load_recipe(path)
    kept = loaded.model_copy(update={"code": ("/whole/src",)})
    source = with_kept(source_of(path), loaded, kept)
    assert source["code"] == ["/whole/src"]
    assert recipe_from(source, {"trainer.max_epochs": 5}, "it").seed == 5


FOLDED = ("dataset.folds=3", "dataset.splits={train: 0.9, test: 0.1}")


def test_a_fold_may_be_evaluated(recipe_file):
    recipe = load_recipe(recipe_file(), [*FOLDED, "data.fold=2", "evaluate.split=val"])
    assert (recipe.data.fold, recipe.evaluate.split) == (2, "val")


OWN = ("dataset=null", "model=null", "evaluate=null", "train.script=mine.py")
"""Of a recipe whose script brings its own data."""


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["trainer.max_epoch=3"], ["unknown key 'trainer.max_epoch'", "Did you mean 'max_epochs'"]),
        (["tainer.max_epochs=3"], ["unknown key 'tainer'", "Did you mean 'trainer'"]),
        (["dataset.soruce=x"], ["unknown key 'dataset.soruce'", "Did you mean 'source'"]),
        (["trainer.max_epochs=many"], ["trainer.max_epochs", "integer", "'many'"]),
        (["seed=many"], ["mine.yaml with seed=many: seed: ", "(got 'many')"]),
        (["trainer.extra.devices=2"], ["sets devices, ", "(devices: write train.ranks_per_node)"]),
        (["trainer.max_epochs=0"], ["trainer.max_epochs: give an integer (≥ 1"]),
        (["trainer.val_every_epochs=0"], ["trainer.val_every_epochs: give an integer (≥ 1"]),
        (["train.timeout=soon"], ["train.timeout: give seconds", "90s, 30min", "(got 'soon')"]),
        (["+suite={deadline: 0}"], ["suite.deadline: give seconds, above 0, up to", "(got 0)"]),
        (["+suite={sites: a}"], ["suite.sites: give a list", "(got 'a')", "brackets: [a]."]),
        (["suite.sites=a,b"], ["A list has brackets, suite.sites=[a,b];", "headrace sweep"]),
        (["pack.images=decoded"], ["pack.images", "'decode'", "'encoded'"]),
        (["dataset.splits={train: 0.5}"], ["splits add up to 0.5, not to 1"]),
        (["dataset.path=/x"], ["either 'source'", "or 'path'"]),
        (["dataset.labels=index"], ["needs 'index'"]),
        (["dataset.format=function"], ["needs 'reader'"]),
        (["dataset.source='s3://a:b@c/d'"], ["'source' holds credentials", "environment"]),
        (["pack.target='s3://a:b@c/d'"], ["'target' holds credentials", "environment"]),
        (["dataset.index=a.csv", "dataset.labels=folders"], ["both an index file and labels from"]),
        (["data.fold=0"], ["data.fold is 0", "set dataset.folds"]),
        ([*FOLDED, "data.fold=3"], ["data.fold is 3", "dataset.folds is 3", "from 0 to 2"]),
        ([*FOLDED, "evaluate.split=val"], ["is one of the folds", "set data.fold, from 0 to 2"]),
        (["evaluate.checkpoint=best"], ["evaluate.checkpoint is 'best'", "set trainer.monitor"]),
        (["evaluate.split=tset"], ["evaluate.split is 'tset'", "train, val, test"]),
        (["evaluate.also_checkpoints=[best]"], ["evaluate.checkpoint is 'best'"]),
        (["evaluate.also_checkpoints=[5,last]"], ["also_checkpoints has last again"]),
        (["evaluate.checkpoint=bset"], ["evaluate.checkpoint", "last, best, a number", "'bset'"]),
        (["evaluate.checkpoint=0"], ["evaluate.checkpoint", "counted from 1"]),
        (["trainer.max_steps=9", "evaluate.also_checkpoints=[5,10]"], ["is 10", "max_steps: 9"]),
        (["evaluate.also_splits=[vla]"], ["evaluate.split is 'vla'", "train, val, test"]),
        (["trainer.callbacks=[{target: a.B}]"], ["callbacks.0._target_' is missing"]),
        (["trainer.loggers=[wandbb]"], ["loggers.0", "valid: csv, tensorboard, mlflow, wandb"]),
        (["model=null"], ["give one of 'model', 'train.script', 'train.module', 'train.command'"]),
        (["train.function._target_=m.f"], ["give one of 'model', 'train.script', 'train.m"]),
        (
            ["model=null", "train.function._target_=m.f", "evaluate.split=test"],
            ["a training function has no model to evaluate: set 'evaluate: null'"],
        ),
        (
            [
                "model=null",
                "evaluate=null",
                "train.function._target_=m.f",
                "train.ranks_per_node=2",
            ],
            ["train.function is called once: leave train.ranks_per_node out"],
        ),
        (
            ["dataset=null", "data.prefetch=2"],
            ["'data' says how samples of a 'dataset' become batches: leave it out"],
        ),
        (["datamodule._target_=m.D"], ["'datamodule' goes with 'model' and without 'dataset'"]),
        (
            ["dataset=null", "evaluate={}"],
            ["evaluate scores samples of a 'dataset': set evaluate: null"],
        ),
        (
            ["data.batch=[image]", "data.collate._target_=m.f"],
            ["batch names fields, and collate forms the batch: leave one out"],
        ),
        ([*OWN, "data.fold=0"], ["data.fold is given, but the recipe has no dataset to cut"]),
        ([*OWN, "suite.folds=true"], ["suite.folds is given, but the recipe has no dataset"]),
        (["seed"], ["'seed' is not of the form key=value", "trainer.max_epochs=3"]),
        (["name=a/b"], ["name: give a name of up to 64 letters", "(got 'a/b')"]),
        (
            ["+model.in_features=4"],
            ["adds a key that exists", "To change it: model.in_features=VALUE"],
        ),
        (["+trainer.max_epoch=3"], ["unknown key", "Did you mean 'max_epochs'"]),
        (
            ["~model.in_feature"],
            ["removes a key that does not exist", "Did you mean 'in_features'"],
        ),
        (["~seed"], ["removes a key that does not exist", "has its default"]),
        (["~trainer.callbacks.a"], ["'~trainer.callbacks.a' removes", "trainer.callbacks=[]"]),
        (["~model=3"], ["not of the form", "~key removes one"]),
        *(([each], ["not of the form key=value"]) for each in ("=3", "+a", "~", "+=3")),
    ],
)
def test_wrong_recipe_is_explained(recipe_file, overrides, words):
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe_file(), overrides)
    for word in words:
        assert word in str(caught.value)


URL = "s3://AKIAKEY:hid/den+1@bucket/x"


@pytest.mark.parametrize(
    "overrides",
    [
        [f"dataset.source='{URL}'"],
        [f"dataset.path={URL}", "dataset.source=null"],
        [f"pack.target={URL}"],
        [f"train.init_from={URL}"],
        [f"trainer.checkpoint_target={URL}"],
        [f"dataset.sorce={URL}"],
        [f"trainer.max_epochs={URL}"],
        [f"train.timeout={URL}"],
        [f"dataset.source='{URL}", "seed=1"],
        [f"={URL}"],
        ["dataset.source='s3://onlyhidden@bucket/x'"],
    ],
    ids=lambda each: each[0].partition("=")[0],
)
def test_credentials_in_an_override_are_shown_to_nobody(recipe_file, overrides):
    """The message goes to the terminal, to logs and to run folders."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe_file(), overrides)
    told = "".join(traceback.format_exception(caught.value))
    for secret in ("hid/den", "hidden", "AKIAKEY"):
        assert secret not in str(caught.value)
        assert secret not in told
    assert "s3://***@bucket" in str(caught.value)


def site_with_endpoint(url: str) -> Site:
    laptop = load_site("laptop").model_dump(by_alias=True)
    return parse(Site, {**laptop, "s3": {"endpoint_url": url}}, "test")


def test_credentials_in_the_endpoint_are_refused_and_not_shown():
    with pytest.raises(SiteError, match="'endpoint_url' holds credentials") as caught:
        site_with_endpoint("http://me:hidden@minio:9000")
    assert "hidden" not in str(caught.value)
    site_with_endpoint("http://minio:9000/at@home")


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(RecipeError, match="Did you mean 'digits'"):
        load_recipe("digts")
    with pytest.raises(SiteError, match="Did you mean 'laptop'"):
        load_site("labtop")


def test_missing_and_broken_files(recipe_file, tmp_path):
    with pytest.raises(RecipeError, match=r"nothing\.yaml' does not exist"):
        load_recipe(str(tmp_path / "nothing.yaml"))
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(recipe_file("a: [1,\n"))
    with pytest.raises(RecipeError, match="not a mapping"):
        load_recipe(recipe_file("- 1\n- 2\n"))
    with pytest.raises(RecipeError, match=r"cannot be read.*NOT_SET_ANYWHERE"):
        load_recipe(recipe_file(MINIMAL.replace("/somewhere", "${oc.env:NOT_SET_ANYWHERE}")))
    (tmp_path / "mine.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(RecipeError, match=r"mine\.yaml is not UTF-8"):
        load_recipe(str(tmp_path / "mine.yaml"))


def test_search_path_comes_first(tmp_path, monkeypatch):
    (tmp_path / "digits.yaml").write_text(MINIMAL)
    monkeypatch.setenv("HEADRACE_RECIPES_PATH", str(tmp_path))
    assert available("recipes")["digits"] == tmp_path / "digits.yaml"
    assert load_recipe("digits").dataset.source == "/somewhere"


def test_what_replaces_a_built_in_one_is_told(tmp_path, monkeypatch, headrace_home, caplog):
    (tmp_path / "recipes").mkdir(mode=0o755)
    file = tmp_path / "recipes" / "digits.yaml"
    file.write_text(MINIMAL)
    file.chmod(0o644)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert load_recipe("digits").dataset.source == "/somewhere"
    told = f"The recipe 'digits' is {file}, not the built-in one."
    assert caplog.messages == [told]
    load_site("laptop")
    assert caplog.messages == [told]


@pytest.mark.parametrize(("kind", "name"), [("recipes", "digits"), ("sites", "laptop")])
def test_what_others_could_change_in_the_working_folder_is_not_used(
    tmp_path, monkeypatch, headrace_home, caplog, kind, name
):
    (tmp_path / kind).mkdir()
    for each in (name, "mine"):
        (tmp_path / kind / f"{each}.yaml").write_text("no recipe and no site")
    (tmp_path / kind).chmod(0o777)
    monkeypatch.chdir(tmp_path)
    assert "mine" not in available(kind)
    assert available(kind)[name] == locate(kind, name) == BUILT_IN / kind / f"{name}.yaml"
    unused = f"{tmp_path / kind / f'{name}.yaml'} is not used: other accounts may write to "
    (told,) = caplog.messages
    assert told.startswith(unused)
    assert told.endswith("To use it, give its path instead of its name.")
    with pytest.raises(UserError, match=r"There is no .* 'mine'"):
        locate(kind, "mine")
    assert f"{kind}/mine.yaml is not used" in caplog.messages[-1]
    path = str(Path(kind, "mine.yaml"))
    assert locate(kind, path) == Path(path)


def test_recipes_survive_a_round_trip_through_json():
    recipe = load_recipe("digits")
    assert type(recipe).model_validate_json(recipe.model_dump_json(by_alias=True)) == recipe


def test_two_tiers_of_one_name_are_refused(tmp_path):
    """Tiers are told apart by name; the second would silently take the place of the first."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "folder: /shared\nroles: {cpu: {}}\n"
        "tiers: [{name: nvme, folder: /a}, {name: disk, folder: /b}, {name: nvme, folder: /c}]\n"
    )
    with pytest.raises(SiteError, match="more than one of the tiers is named 'nvme'"):
        load_site(str(path))


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("limit_train_batches=3", "write trainer.limit_train_batches."),
        ("train.limit_train_batches=3", "write trainer.limit_train_batches."),
        ("trainer.limit_train_batchs=3", "write trainer.limit_train_batches."),
        ("data.profiler=simple", "write trainer.profiler."),
        ("trainer.devices=2", "set by headrace: write train.ranks_per_node."),
        ("trainer.num_nodes=2", "set by headrace: write train.nodes."),
        ("data.check_val_every_n_epoch=2", "set by headrace: write trainer.val_every_epochs."),
        ("trainer.use_distributed_sampler=true", "headrace shares the samples out itself."),
        ("train.max_epochs=3", "Did you mean 'trainer.max_epochs'? Valid here: args, "),
        ("nodes=2", "Did you mean 'train.nodes' or 'roles.*.nodes' of the site? Valid here: "),
        ("stage.budget=3", "'suite.budget' or 'tiers.*.budget' of the site or 'limits.budget' of"),
        ("stage.shufle_window=2", "Did you mean 'data.shuffle_window'? Valid here: "),
        ("trainer.max_epoch=3", "Did you mean 'max_epochs'? Valid: "),
    ],
)
def test_a_key_in_the_wrong_section_or_of_lightning_is_told_where_it_belongs(override, hint):
    with pytest.raises(RecipeError, match="unknown key") as caught:
        load_recipe("digits", [override])
    assert hint in caught.value.hint


def test_what_only_lightning_knows_is_passed_on():
    wanted = {"limit_train_batches": 3, "val_check_interval": 0.5}
    extra = ["trainer.extra.limit_train_batches=3", "trainer.val_check_interval=0.5"]
    plain = ["trainer.limit_train_batches=3", "trainer.val_check_interval=0.5"]
    assert load_recipe("digits", extra).trainer == load_recipe("digits", plain).trainer
    assert load_recipe("digits", plain).trainer.extra == wanted
    with pytest.raises(RecipeError, match="'limit_train_batches' is written twice"):
        load_recipe("digits", [*extra, "trainer.limit_train_batches=4"])
    with pytest.raises(RecipeError, match=r"precision: write trainer\.precision"):
        load_recipe("digits", ["trainer.extra.precision=16-mixed"])


@pytest.mark.parametrize(
    ("words", "metric", "mode"),
    [
        ((), "accuracy", "max"),
        (("trainer.monitor=val_loss",), "val_loss", "min"),
        (("trainer.monitor=val_loss", "suite.objectives=[{metric: f1, mode: max}]"), "f1", "max"),
        (("evaluate.task=regression",), "mae", "min"),
        (("evaluate=null",), "loss", "min"),
    ],
)
def test_trials_are_compared_by_what_is_sought_else_by_the_main_metric(
    words: tuple[str, ...], metric: str, mode: str
):
    (found,) = load_recipe("digits", words).objectives
    assert (found.metric, found.mode) == (metric, mode)


def test_what_the_users_code_alone_knows_is_no_objective():
    assert load_recipe("digits", ["evaluate.task=custom"]).objectives == ()
    words = ["model=null", "evaluate=null", "train.function={_target_: a.b}"]
    assert load_recipe("digits", words).objectives == ()


def test_recipes_as_written_are_read_anew_when_they_change(headrace_home, monkeypatch):
    file = headrace_home / "recipes" / "mine.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text("seed: ${oc.env:HOME}")
    (file.parent / "damaged.yaml").write_text("[")
    (file.parent / "list.yaml").write_text("- 1")
    found = written("recipes")
    assert (found["mine"], found["damaged"], found["list"]) == ({"seed": "${oc.env:HOME}"}, {}, {})
    monkeypatch.setattr(yaml_text, "parsed", lambda text: {"read": text})
    assert written("recipes") == found
    file.write_text("seed: 3")
    os.utime(file, (1, 1))
    assert written("recipes")["mine"] == {"read": "seed: 3"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.max_steps=0", "makes no training"),
        ("trainer.max_epochs=0", "max_epochs"),
        ("trainer.limit_train_batches=0", "limit_train_batches is 0"),
        ("trainer.limit_train_batches=0.0", "limit_train_batches is 0.0"),
        ("trainer.limit_train_batches=-1", "limit_train_batches is -1"),
        ("trainer.limit_train_batches=1.5", "limit_train_batches is 1.5"),
        ("trainer.limit_train_batches=true", "limit_train_batches is True"),
        ("trainer.extra.limit_train_batches=0", "limit_train_batches is 0"),
        ("trainer.overfit_batches=2", "overfit_batches trains and validates on some"),
        ("trainer.overfit_batches=0.5", "overfit_batches trains and validates on some"),
        ("trainer.fast_dev_run=true", "fast_dev_run tries some batches"),
        ("trainer.fast_dev_run=3", "fast_dev_run tries some batches"),
        ("trainer.barebones=true", "barebones makes no checkpoints"),
        ("trainer.enable_checkpointing=false", "enable_checkpointing makes no checkpoints"),
        ("trainer.max_time='00:00:00:00'", "max_time is '00:00:00:00': give a pos"),
        ("trainer.max_time={seconds: 0}", "max_time is .'seconds': 0.: give a positive time"),
        ("trainer.max_time={hours: -1}", "max_time is .'hours': -1.: give a positive time"),
        ("trainer.max_time=0", "max_time is 0"),
        ("trainer.max_time=0.0", "max_time is 0"),
        ("trainer.max_time=5", "max_time is 5: give a positive time as"),
        ("trainer.max_time=x", "max_time is 'x': give a positive time as"),
        ("trainer.max_time='1:2:3'", "max_time is '1:2:3': give a positive time as"),
        ("trainer.max_time={fortnights: 1}", "give a positive time as"),
        ("trainer.max_time={hours: many}", "give a positive time as"),
        ("trainer.max_time={hours: .inf}", "give a positive time as"),
    ],
)
def test_what_makes_no_training_of_the_recipe_is_refused(override, words):
    with pytest.raises(RecipeError, match=words):
        load_recipe("digits", [override])


@pytest.mark.parametrize(
    "override",
    [
        "trainer.max_steps=-1", "trainer.limit_train_batches=1", "trainer.limit_train_batches=0.5",
        "trainer.limit_train_batches=1.0", "trainer.limit_train_batches=null",
        "trainer.overfit_batches=0.0", "trainer.fast_dev_run=false", "trainer.barebones=false",
        "trainer.enable_checkpointing=true", "trainer.max_time='00:01:00:00'",
        "trainer.max_time={hours: 1}", "trainer.limit_val_batches=0", "trainer.max_time=null",
        "trainer.limit_test_batches=1.0", "trainer.limit_predict_batches=3",
        "trainer.val_check_interval=0.25", "trainer.val_check_interval=10",
        "trainer.val_check_interval='00:01:00:00'", "trainer.val_check_interval={minutes: 5}",
        "trainer.min_epochs=0", "trainer.log_every_n_steps=0", "trainer.num_sanity_val_steps=-1",
        "trainer.gradient_clip_algorithm=value", "trainer.profiler=simple",
        "trainer.benchmark=true", "trainer.inference_mode=false", "trainer.strategy=ddp_fork",
        "trainer.precision=bf16", "trainer.strategy=deepspeed_stage_2",
        "trainer.limit_val_batches=null", "trainer.default_root_dir=/tmp/x",
    ],
)  # fmt: skip
def test_what_trains_as_the_recipe_says_is_passed_on(override):
    assert load_recipe("digits", [override]).trainer is not None


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(
        ["${seed}", r"\${seed}", r"\\${a:b", "???", "{", "\x00\x7f\ufeff", "1e3", "😀"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(-9, 9) | st.just("${seed}"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(arguments=st.dictionaries(st.sampled_from(["dims", "words", "more"]), _VALUES))
def test_a_recipe_of_a_record_is_the_recipe_that_was_written(tmp_path_factory, arguments):
    recipe = load_recipe("digits")
    model = Target.model_validate({"_target_": "a.Net", **arguments})
    recipe = recipe.model_copy(update={"model": model})
    file = tmp_path_factory.mktemp("run") / "recipe.json"
    write_record(file, recipe)
    assert load_recipe(str(file)) == recipe


def test_the_source_of_trials_keeps_its_interpolations(tmp_path):
    file = tmp_path / "recipe.source.json"
    content = {"dataset": {"name": "d", "source": "/d"}, "seed": 3, "vars": {"of": "x${seed}"}}
    content["model"] = {"_target_": "a.Net", "dims": {"_pairs_": [[1, "${seed}"]]}}
    write_json(file, content)
    recipe = load_recipe(str(file), ["seed=5"])
    assert recipe.vars == {"of": "x5"}
    assert recipe.model.as_config()["dims"] == {1: 5}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": 1, "a": 2}', "{", '{"a": "\\ud800"}', "[]", "1"]
)
def test_a_damaged_record_is_refused(tmp_path, text):
    file = tmp_path / "recipe.json"
    file.write_text(text)
    with pytest.raises(RecipeError, match=r"recipe\.json"):
        load_recipe(str(file))


_TIER = {"budget": None, "reserve": None, "keep": None}


def own_site(home: Path, text: str, name: str = "laptop") -> Path:
    file = home / "sites" / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        ("# roles: {gpu: {ranks_per_node: 8}}\n", {}),
        ("limits: {}\n", {}),
        ("roles: {gpu: {ranks_per_node: 1}}", {"roles.gpu.ranks_per_node": 1}),
        ("limits:\n  max_leases: 5\n", {"limits.max_leases": 5}),
        ("folder: /big\nallowed_code: [/opt]", {"folder": "/big", "allowed_code": ["/opt"]}),
        (
            "tiers: [{name: nvme, folder: /nvme}]\nroles: {cpu: {nodes: 3}}",
            {"tiers": [{**_TIER, "name": "nvme", "folder": "/nvme"}], "roles.cpu.nodes": 3},
        ),
        ("roles: {big: {nodes: 7}}", {"roles.big.nodes": 7}),
        ("folder: ${oc.env:PWD}/x", {"folder": f"{os.environ.get('PWD')}/x"}),
    ],
)
def test_a_small_file_of_the_user_changes_a_built_in_site(headrace_home, text, changes, caplog):
    built_in = flattened(load_site("laptop"))
    file = own_site(headrace_home, text)
    for asked in ("laptop", str(file)):
        now = flattened(load_site(asked))
        assert {key: json.loads(now[key]) for key in changes} == changes
        assert {key for key, value in built_in.items() if now[key] != value} <= changes.keys()
    assert site_now("laptop") == load_site("laptop")
    assert caplog.messages == []


def test_a_whole_file_replaces_a_built_in_site(headrace_home, caplog):
    whole = {
        "folder": "/x",
        "roles": {"gpu": {"kind": "gang"}},
        "tiers": [{"name": "a", "folder": "/a"}],
    }
    file = own_site(headrace_home, yaml.safe_dump(whole))
    assert load_site("laptop").roles.keys() == {"gpu"}
    assert caplog.messages == [f"The site 'laptop' is {file}."]


def test_a_change_of_a_site_in_the_working_folder_is_told(tmp_path, monkeypatch, caplog):
    tmp_path.chmod(0o755)
    file = own_site(tmp_path, "limits: {max_leases: 3}")
    file.chmod(0o644)
    file.parent.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert load_site("laptop").limits.max_leases == 3
    assert caplog.messages == [f"The site 'laptop' is changed by {file}."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rolez: {}", "laptop.yaml: unknown key 'rolez'"),
        ("roles: 3", "laptop.yaml: roles"),
        ("roles: {gpu: 3}", "laptop.yaml: roles.gpu"),
        ("- 1", "laptop.yaml holds a list, not a mapping"),
        ("a: [", "laptop.yaml cannot be read"),
        ("7", "laptop.yaml"),
    ],
)
def test_a_change_that_cannot_be_used_is_told_with_its_file(headrace_home, text, words):
    file = own_site(headrace_home, text)
    with pytest.raises(SiteError, match=re.escape(words)) as caught:
        load_site("laptop")
    assert str(file) in str(caught.value)
    load_site("slurm-dev")


def test_a_site_of_the_user_alone_is_whole_or_refused(headrace_home):
    own_site(headrace_home, "", "mine")
    with pytest.raises(SiteError, match=r"mine\.yaml: the key 'folder' is missing"):
        load_site("mine")
    own_site(headrace_home, "folder: /x", "mine")
    with pytest.raises(SiteError, match="roles"):
        load_site("mine")


def test_names_of_arguments_hold_dots(recipe_file):
    """A group and a key in it stand side by side, as in Hydra."""
    script = ("model=null", "evaluate=null", "train.script=x.py")
    args = (
        "train.args={opt: adam, opt.lr: 0.1}",
        "args.opt.lr=0.2",
        "+args.--epochs=3",
        "~args.opt",
    )
    recipe = load_recipe(recipe_file(), (*script, *args))
    assert recipe.train.args == {"opt.lr": 0.2, "--epochs": 3}
    assert load_recipe(recipe_file(), (*script, "args.a.b=1")).train.args == {"a.b": 1}
    for wrong in ("+args.opt.lr=1", "~args.lr", "args.x=[null]", "args.x={a: 1}"):
        with pytest.raises(RecipeError, match=r"adds a key|removes a key|is not valid: write"):
            load_recipe(recipe_file(), (*script, *args[:1], wrong))
    with pytest.raises(RecipeError, match=r"train\.args goes with 'train.script'"):
        load_recipe(recipe_file(), ("args.lr=1",))


def test_values_of_ones_own_stand_for_others(recipe_file):
    recipe = load_recipe(recipe_file(), ("vars={n: 3}", "seed=${vars.n}", "vars.n=5"))
    assert recipe.seed == 5
