"""The DAG files: cheap to parse, wired, checked; what users may set who trigger a run."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.dagbag import DagPriorityParsingRequest
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.session import create_session
from sqlalchemy import delete, select

from headrace.errors import RecipeError, SiteError
from headrace.recipe.load import load_recipe
from headrace_airflow.bundle import HeadraceDagBundle
from headrace_airflow.dag_parts import check_choice, check_overrides, check_sweep, overrides_of
from headrace_pages.acts import _split

DAGS = Path(__file__).parents[2] / "dags"
DAG_IDS = {f"headrace_{it}" for it in ("clean", "pack", "probe", "reaper", "suite", "train")}
_HOUSEKEEPING = {"headrace_clean", "headrace_reaper"}


def test_all_parse(dag_bag):
    assert dag_bag.import_errors == {}
    assert set(dag_bag.dags) == DAG_IDS


def test_a_copy_for_a_team_needs_a_name_of_its_own_only(dag_bag, tmp_path):
    """As docs/how-to/many-users.md tells."""
    text = (DAGS / "headrace_train.py").read_text()
    (tmp_path / "vision.py").write_text(text.replace('"headrace_train"', '"vision_train"'))
    found = DagBag(dag_folder=str(tmp_path), bundle_name="vision")
    assert found.import_errors == {}
    (copy,) = found.dags.values()
    assert copy.dag_id == "vision_train"
    assert copy.task_ids == dag_bag.dags["headrace_train"].task_ids


@pytest.mark.parametrize("dag_id", sorted(DAG_IDS))
def test_each_is_stored_and_read_again(dag_bag, dag_id):
    stored = DagSerialization.to_dict(dag_bag.dags[dag_id])
    assert DagSerialization.from_dict(stored).params.keys() == dag_bag.dags[dag_id].params.keys()


@pytest.mark.parametrize("dag_id", sorted(DAG_IDS))
def test_each_tells_what_it_is_for(dag_bag, dag_id):
    dag = dag_bag.dags[dag_id]
    assert dag.doc_md
    assert dag.description
    assert dag.tags == {"housekeeping" if dag_id in _HOUSEKEEPING else "headrace"}
    assert not dag.catchup
    assert len(dag.topological_sort()) == len(dag.tasks)  # raises when there is a cycle


TASKS = {
    "headrace_pack": ["prepare", "pack", "finish"],
    "headrace_probe": ["prepare", "probe", "finish"],
    "headrace_train": ["prepare", "pack", "stage", "train", "evaluate", "finish"],
    "headrace_suite": ["prepare", "pack", "suite", "finish"],
}


@pytest.mark.parametrize(("dag_id", "tasks"), TASKS.items())
def test_tasks_are_the_steps_between_what_makes_the_run_and_what_ends_it(dag_bag, dag_id, tasks):
    """Work of any size is O(1) tasks, also the trials of a suite (pains 1, 2, 3)."""
    dag = dag_bag.dags[dag_id]
    assert [task.task_id for task in dag.topological_sort()] == tasks
    for before, after in itertools.pairwise(tasks):
        assert before in dag.get_task(after).upstream_task_ids
    assert {task.is_mapped for task in dag.tasks} == {False}
    assert dag.get_task("prepare").is_setup
    assert dag.get_task("finish").is_teardown
    assert "prepare" in dag.get_task("finish").upstream_task_ids


@pytest.mark.parametrize("dag_id", sorted(DAG_IDS - _HOUSEKEEPING))
def test_a_run_that_failed_fails_its_dag_run(dag_bag, dag_id):
    assert dag_bag.dags[dag_id].get_task("finish").on_failure_fail_dagrun


@pytest.mark.parametrize("dag_id", sorted(DAG_IDS - _HOUSEKEEPING))
def test_a_step_is_retried_soon_and_never_limited_by_airflow(dag_bag, dag_id):
    """An Airflow time limit would end the task and leave the work (pains 5, 9)."""
    for task in dag_bag.dags[dag_id].tasks:
        assert task.retries == 4
        assert task.retry_delay <= timedelta(seconds=5)
        assert (task.retry_exponential_backoff, task.max_retry_delay) == (4, timedelta(minutes=2))
        assert task.execution_timeout is None


def test_the_reaper_is_on_and_leaves_time_to_end_things_within_a_minute(dag_bag):
    """Pains 9."""
    reaper = dag_bag.dags["headrace_reaper"]
    look = reaper.get_task("reap")
    assert (reaper.schedule, look.mode) == ("@continuous", "reschedule")
    assert look.poke_interval <= 30
    assert look.execution_timeout <= timedelta(minutes=5)
    assert look.retries * look.retry_delay >= timedelta(hours=1)  # no more DAG runs if it fails
    assert reaper.max_active_runs == 1
    assert reaper.is_paused_upon_creation is False


@pytest.mark.parametrize("dag_id", ["headrace_pack", "headrace_suite", "headrace_train"])
@pytest.mark.parametrize(
    "override",
    [
        "trainer.max_epochs=3",
        "dataset.splits={train: 0.5, test: 0.5}",
        "seed=1",
        "dataset.name=a b",
    ],
)
def test_the_form_takes_plain_overrides(dag_bag, dag_id, override):
    params = dag_bag.dags[dag_id].params
    assert params.get_param("overrides").resolve([override]) == [override]


@pytest.mark.parametrize("dag_id", ["headrace_pack", "headrace_suite", "headrace_train"])
def test_nothing_in_the_form_has_to_be_filled_in(dag_bag, dag_id):
    params = dag_bag.dags[dag_id].params
    params.validate()
    needed = {name for name, param in params.items() if "null" not in param.schema["type"]}
    assert needed == {"recipe", "site"}
    assert all(params.get_param(name).has_value for name in needed)


def test_the_main_keys_of_recipes_have_fields_that_tell_what_recipes_say(dag_bag):
    params = dag_bag.dags["headrace_train"].params
    keys = [name for name, param in params.items() if "section" in param.schema]
    assert keys == ["trainer.max_epochs", "data.global_batch_size", "model.learning_rate", "seed"]
    for key, value in zip(keys, (15, 64, 0.003, 7), strict=True):
        assert f"(digits {value})" in params.get_param(key).description
        assert params.get_param(key).resolve(value) == value
    with pytest.raises(ParamValidationError):
        params.get_param("trainer.max_epochs").resolve(0)


def test_a_suite_may_name_several_sites_with_a_policy_a_deadline_and_a_budget(dag_bag):
    given = {
        "sites": ["laptop", "slurm-dev"],
        "policy": "cheapest",
        "deadline": "90 min",
        "budget": 2.5,
    }
    params = dag_bag.dags["headrace_suite"].params
    assert {name: params.get_param(name).resolve(value) for name, value in given.items()} == given
    words = check_sweep(overrides_of({"recipe": "digits", "site": "laptop", **given}), None)
    suite = load_recipe("digits", words).suite
    assert (suite.sites, suite.policy) == (("laptop", "slurm-dev"), "cheapest")
    assert (suite.deadline, suite.budget) == (5400.0, 2.5)
    assert overrides_of({"recipe": "digits", **dict.fromkeys(given)}) == ()
    for override in ("suite.sites=[laptop]", "suite.budget=3"):
        with pytest.raises(RecipeError, match="given twice"):
            overrides_of({**given, "overrides": [override]})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sites", []),
        ("sites", "laptop"),
        ("sites", ["laptop", "/etc/passwd.yaml"]),
        ("sites", ["laptop"] * 21),
        ("policy", "soonest"),
        ("deadline", "tomorrow"),
        ("deadline", 1e400),
        ("deadline", "9" * 400 + "h"),
        ("budget", 0),
        ("budget", "3"),
        ("budget", 1e400),
    ],
)
def test_the_form_of_suites_refuses(dag_bag, name, value):
    with pytest.raises(ParamValidationError):
        dag_bag.dags["headrace_suite"].params.get_param(name).resolve(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recipe", "no-such-recipe"),
        ("recipe", "/etc/passwd.yaml"),
        ("site", "no-such-site"),
        ("overrides", "seed=1"),
        ("overrides", ["seed"]),
        ("overrides", ["=1"]),
        ("overrides", [1]),
        ("overrides", ["seed=${oc.env:HOME}"]),
        ("overrides", ["code=[/tmp]"]),
        ("overrides", ["code.0=/tmp"]),
        ("overrides", ["[code]=/tmp"]),
    ],
)
def test_the_form_refuses(dag_bag, name, value):
    params = dag_bag.dags["headrace_train"].params
    with pytest.raises(ParamValidationError):
        params.get_param(name).resolve(value)


@pytest.fixture
def asked():
    """Takes the names of the files that Airflow's database says are to be read."""
    table = DagPriorityParsingRequest.__table__
    with create_session() as session:
        table.create(session.get_bind(), checkfirst=True)

    def take():
        with create_session() as session:
            found = session.scalars(select(DagPriorityParsingRequest)).all()
            assert {request.bundle_name for request in found} <= {"ours"}
            names = {request.relative_fileloc for request in found}
            session.execute(delete(DagPriorityParsingRequest))
        return names

    return take


def test_a_recipe_that_comes_changes_or_goes_has_the_dags_read_at_once(asked, headrace_home):
    recipes = headrace_home / "recipes"
    recipes.mkdir(parents=True)
    bundle = HeadraceDagBundle(name="ours")
    files = {file.name for file in bundle.path.glob("*.py")}
    assert len(files) == 6

    def refreshed():
        bundle.refresh()
        return asked()

    assert refreshed() == set()
    mine = recipes / "mine.yaml"
    mine.write_text("name: mine")
    assert refreshed() == files
    assert refreshed() == set()
    os.utime(mine, ns=(1, 1))
    assert refreshed() == files
    mine.unlink()
    (headrace_home / "sites").mkdir()
    assert refreshed() == files
    (headrace_home / "sites" / "here.yaml").write_text("name: here")
    assert refreshed() == files
    assert refreshed() == set()


def test_airflow_is_asked_to_look_as_often_as_it_can():
    assert HeadraceDagBundle(name="ours").refresh_interval == 5
    assert HeadraceDagBundle(name="ours", refresh_interval=60).refresh_interval == 60


_DAGS = Path(__file__).parents[2] / "dags"

_PARSE = """
import json, sys
import airflow.sdk, airflow.triggers.base
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
bag = DagBag(dag_folder=sys.argv[1], bundle_name="headrace")
from headrace_pages.plugin import PagesPlugin
print(json.dumps({
    "dags": sorted(bag.dags),
    "all": sorted(sys.modules),
    "added": sorted(set(sys.modules) - before),
    "pages": [view["href"] for view in PagesPlugin.external_views],
}))
"""

_HEAVY = {
    *("torch", "lightning", "torchmetrics", "dask", "distributed", "h5py", "hdf5plugin", "numpy"),
    *("scipy", "sklearn", "pandas", "pyarrow", "matplotlib", "s3fs", "botocore", "boto3"),
    *("aiobotocore", "obstore", "soundfile", "alembic", "fastapi"),
}

_LIGHT = {
    "headrace",
    "headrace_airflow",
    "headrace_pages",
    "headrace_probes",
    "airflow",
    "antlr4",
    "asgiref",
    "filelock",
    "omegaconf",
}
"""Packages that parsing may add to what Airflow imports by itself."""


def test_parsing_all_dags_imports_nothing_heavy():
    """Nothing that takes long, and of other packages only those that are known to be small."""
    command = [sys.executable, "-c", _PARSE, str(_DAGS)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    seen = json.loads(answer.stdout.splitlines()[-1])
    assert len(seen["dags"]) == 6
    assert {href.partition("/")[0] for href in seen["pages"]} == {"headrace"}  # behind a base path
    assert _HEAVY.isdisjoint(_packages(seen["all"]))
    own = {name for name in seen["added"] if name.startswith("unusual_prefix_")}  # the DAG files
    assert len(own) == 6
    assert _packages(seen["added"]) - _packages(own) - sys.stdlib_module_names <= _LIGHT


def _packages(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_provider_info_needs_no_airflow():
    """Every Airflow process reads it at its start."""
    code = (
        "import sys; from headrace_airflow.provider import get_provider_info as f; "
        "print(f()['package-name'], 'airflow' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert answer.stdout.split() == ["headrace", "False"]


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
