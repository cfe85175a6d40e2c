"""Keys of sites: sources of secrets, options of submit commands, and the example of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from headrace.errors import SiteError
from headrace.recipe.batch import Batch
from headrace.recipe.load import BUILT_IN, load_site, parse
from headrace.recipe.site import Role, Site

GOOD = {
    "WANDB_API_KEY": "airflow:wandb-{user}.password",
    "AWS_ACCESS_KEY_ID": "airflow:s3.data.login",
    "TOKEN": "env:MY_TOKEN",
    "KEY": "file:~/.keys/my key",
}


def site_with(folder, **changes):
    told = yaml.safe_load((BUILT_IN / "sites" / "laptop.yaml").read_text()) | changes
    file = folder / "here.yaml"
    file.write_text(yaml.safe_dump({**told, "name": "here"}))
    return load_site(str(file))


def test_sources_are_kept_as_they_are_written(headrace_home, tmp_path):
    assert site_with(tmp_path, secrets=GOOD).secrets == GOOD


@pytest.mark.parametrize(
    ("secrets", "told"),
    [
        ("hunter2", "secrets: give a mapping, each airflow:CONNECTION.FIELD"),
        (["hunter2"], "secrets: give a mapping, each airflow:CONNECTION.FIELD"),
        ({"KEY": "hunter2"}, r"secrets.KEY: give airflow:CONNECTION.FIELD, env:VARIABLE or"),
        ({"KEY": 1234567}, r"secrets.KEY: give airflow:"),
        ({"KEY": {"env": "hunter2"}}, r"secrets.KEY: give airflow:"),
        ({"KEY": "env:hunter-2"}, r"secrets.KEY: give airflow:"),
        ({"KEY": "airflow:hunter2"}, r"secrets.KEY: give airflow:"),
        ({"KEY": "file:"}, r"secrets.KEY: give airflow:"),
        ({"MY KEY": "env:KEY"}, "give another name for the key"),
    ],
)
def test_what_is_no_source_may_be_a_secret_and_is_not_shown(headrace_home, tmp_path, secrets, told):
    with pytest.raises(SiteError, match=told) as refused:
        site_with(tmp_path, secrets=secrets)
    assert "hunter" not in str(refused.value)
    assert "1234567" not in str(refused.value)


def test_a_variable_has_one_value(headrace_home, tmp_path):
    roles = {"cpu": {"env": {"KEY": "1"}}, "gpu": {}}
    with pytest.raises(SiteError, match="'KEY' is in `secrets` and in `env` of role cpu"):
        site_with(tmp_path, secrets={"KEY": "env:KEY"}, roles=roles)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"options": ["--requeue"]}, "`batch.options` must not hold '--requeue': headrace retries"),
        ({"options": ["--array=1-4"]}, "a lease is one job"),
        ({"options": ["--job-name=mine"]}, "headrace finds its jobs by their names"),
        ({"options": ["-Jmine"]}, "headrace finds its jobs by their names"),
        ({"options": ["--output", "x"]}, "headrace writes the log into the lease's folder"),
        ({"options": ["-N 4"]}, "write `nodes` of the role"),
        ({"options": ["mine"]}, "'mine' in `batch.options` is malformed; write it as"),
        ({"srun_options": ["--export=NONE"]}, "the nodes need the environment of the job"),
        ({"partition": "a", "options": ["-p b"]}, "'-p b': `batch.partition` says it already"),
        (
            {"gpus_per_node": 2, "options": ["--gres=gpu:4"]},
            "`batch.gpus_per_node` says it already",
        ),
        ({"gpu_type": "a100"}, "write `gpus_per_node`, too"),
    ],
)
def test_options_that_contradict_headrace_are_refused(batch: dict[str, Any], told: str):
    """pains 32: no second layer of requeueing behind headrace's back."""
    with pytest.raises(ValidationError) as caught:
        Role(backend="slurm", kind="gang", batch=batch)
    assert told in str(caught.value)


def test_other_options_are_passed_on():
    options = ["--mail-type=FAIL", "-C ib", "--gres=tmpfs:100G"]
    role = Role(backend="slurm", kind="gang", batch={"partition": "a", "options": options})
    assert role.batch.options == tuple(options)


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "run-on-slurm.md"


def test_the_examples_of_the_page():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    site = next(each for each in blocks if each.startswith("name: my-cluster"))
    batch = next(each for each in blocks if "container:" in each)
    shown = parse(Site, yaml.safe_load(site), str(PAGE))
    assert shown.roles["gpu"].batch.modules == ("cuda/12.4",)
    container = Batch.model_validate(yaml.safe_load(batch)["batch"]).container
    assert container.runtime == "apptainer"
