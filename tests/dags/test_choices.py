"""What is taken from whoever may trigger a DAG."""

from __future__ import annotations

import pytest

from headrace.errors import RecipeError, SiteError
from headrace_airflow.dag_parts import check_choice, check_overrides, check_sweep
from headrace_pages.acts import _split


@pytest.mark.parametrize(
    "override",
    ["trainer.max_epochs=3", "dataset.name=$x", "model.layers=[8, 16]", "evaluate=null", "seed="],
)
def test_plain_overrides_pass(override):
    assert check_overrides([override]) == (override,)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", "form key=value"),
        ("[code]=x", "form key=value"),
        ("seed=1\nseed=2", "one line"),
        ("code=[/tmp]", "sets 'code'"),
        ("+code=[/tmp]", "form key=value"),
        ("~code", "form key=value"),
        ("dataset.name=${oc.env:HOME}", "interpolation"),
        ("dataset.name='${oc.env:HOME}'", "interpolation"),
        ('model={"a b": ["\\u0024{oc.env:HOME}"]}', "interpolation"),
        ('model={"\\x24{oc.env:HOME}": 1}', "interpolation"),
        ("seed={", "cannot be read"),
        ('name=!!pairs [{"\\x24{oc.env:HOME}": 1}]', "the tag 'tag:yaml.org,2002:pairs'"),
        ('name=!!omap [{a: "\\x24{oc.env:HOME}"}]', "the tag 'tag:yaml.org,2002:omap'"),
        ('name=!!python/object/apply:pathlib.Path ["\\x24{oc.env:HOME}"]', "the tag"),
        ('name=!!binary "JHtvYy5lbnY6SE9NRX0="', "the tag"),
        ("name=[&a x, *a]", "the anchor or alias 'a'"),
        (f"model.x={'[' * 100_000}", "more than 32 lists and mappings"),
        (f"model.x=[{'1,' * 101_000}]", "more than 100000 values"),
        (f"model.x={'1' * 5000}", "cannot be read"),
    ],
)
def test_others_are_refused_in_words(override, words):
    with pytest.raises(RecipeError, match=words):
        check_overrides([override])


_OPTIONS = "{options: {cpp.march: native -wrapper /bin/sh}}"


@pytest.mark.parametrize(
    "word",
    [
        f"trainer.compile={_OPTIONS}",
        f"trainer={{compile: {_OPTIONS}}}",
        "trainer.compile.options.cpp=x",
        "trainer.compile=max-autotune",
        f"trainer.extra={{plugins: {_OPTIONS}}}",
        "trainer.default_root_dir=/tmp/x",
        "trainer.callbacks.0.dirpath=/tmp/x",
        "trainer.callbacks=[{_target_: lightning.pytorch.callbacks.ModelCheckpoint}]",
        "model._target_=os.system",
        "model={child: {_target_: os.system}}",
        f"suite.grid={{trainer.compile: [{_OPTIONS}]}}",
        f"suite={{points: [{{trainer.compile: {_OPTIONS}}}]}}",
        f"suite.zip={{'trainer[compile]': [{_OPTIONS}]}}",
        "suite.search.space={trainer.compile: 'choice(default, max-autotune)'}",
        "suite.grid={model._target_: [os.system]}",
    ],
)
def test_what_is_passed_on_to_others_code_stays_as_the_file_says(word):
    """A compiler's options, given by REST, ran a command as the account of the lease."""
    for check in (check_overrides, lambda words: check_sweep(words, None)):
        with pytest.raises(RecipeError, match="only a recipe's file may set"):
            check([word])


def test_trials_added_on_the_page_of_a_suite_are_judged_alike():
    assert _split("model.lr=0.1,0.2 seed=3") == ["model.lr=0.1,0.2", "seed=3"]
    with pytest.raises(RecipeError, match="only a recipe's file may set"):
        _split(f"'trainer.compile={_OPTIONS}'")


@pytest.mark.parametrize(
    "word",
    [
        "trainer.compile=true",
        "trainer.limit_train_batches=10",
        "trainer.loggers=[csv]",
        "trainer.callbacks=[]",
        "trainer.ddp.comm_hook=fp16",
        "model.hidden=64",
        "model.activation=relu",
        "suite.grid={model.hidden: [32, 64], trainer.max_epochs: [1, 2]}",
    ],
)
def test_typed_keys_and_arguments_may_be_set_from_airflow(word):
    assert check_overrides([word]) == (word,)


def test_recipes_and_sites_are_named_never_given_by_path(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("name: mine")
    with pytest.raises(RecipeError, match="no recipe"):
        check_choice("recipes", str(recipe))
    with pytest.raises(SiteError, match="Did you mean 'laptop'"):
        check_choice("sites", "labtop")
    assert check_choice("recipes", "digits") == "digits"


def test_words_of_a_sweep_become_plain_overrides_of_the_suite():
    words = ["trainer.max_epochs=3", "model.learning_rate=1e-3,1e-2", "seed=range(0,3)"]
    assert check_sweep(words, None) == (
        "trainer.max_epochs=3",
        "suite.seeds=[0, 1, 2]",
        'suite.grid={"model.learning_rate": [0.001, 0.01]}',
    )
    (search,) = check_sweep(["model.learning_rate=interval(1e-4, 1e-1)"], 20)
    assert search.startswith("suite.search=")
    assert '"trials": 20' in search


@pytest.mark.parametrize(
    "word", ["model.name=${oc.env:HOME},b", "model.name=choice('${oc.env:HOME}', b)"]
)
def test_a_sweep_brings_no_interpolation(word):
    with pytest.raises(RecipeError, match="interpolation"):
        check_sweep([word], None)
