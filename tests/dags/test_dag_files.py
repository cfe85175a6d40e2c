"""The DAG files: cheap to parse, wired, checked, and read anew."""

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
from airflow.utils.session import create_session
from sqlalchemy import delete, select

from headrace_airflow.bundle import HeadraceDagBundle

DAGS = Path(__file__).parents[2] / "dags"
DAG_IDS = {"headrace_pack", "headrace_probe", "headrace_reaper", "headrace_suite", "headrace_train"}


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
def test_each_tells_what_it_is_for(dag_bag, dag_id):
    dag = dag_bag.dags[dag_id]
    assert dag.doc_md
    assert dag.description
    assert dag.tags == {"housekeeping" if dag_id == "headrace_reaper" else "headrace"}
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


@pytest.mark.parametrize("dag_id", sorted(DAG_IDS - {"headrace_reaper"}))
def test_a_run_that_failed_fails_its_dag_run(dag_bag, dag_id):
    assert dag_bag.dags[dag_id].get_task("finish").on_failure_fail_dagrun


@pytest.mark.parametrize("dag_id", sorted(DAG_IDS - {"headrace_reaper"}))
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
    assert reaper.schedule <= timedelta(seconds=30)
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
    assert len(files) == 5

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
    assert len(seen["dags"]) == 5
    assert {href.partition("/")[0] for href in seen["pages"]} == {"headrace"}  # behind a base path
    assert _HEAVY.isdisjoint(_packages(seen["all"]))
    own = {name for name in seen["added"] if name.startswith("unusual_prefix_")}  # the DAG files
    assert len(own) == 5
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
