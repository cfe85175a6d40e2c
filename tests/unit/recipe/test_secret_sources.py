"""Secrets of a site: sources, never values."""

from __future__ import annotations

import pytest
import yaml

from headrace.errors import SiteError
from headrace.recipe.load import BUILT_IN, load_site

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
