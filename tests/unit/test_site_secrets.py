"""A site's secrets: where each value comes from, and its file, as long as the lease."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

import pytest

from headrace.clusters import lease_client
from headrace.errors import LeaseError, SecretError
from headrace.files.atomic import write_record
from headrace.files.layout import SiteFolder
from headrace.leases import run_leases
from headrace.ledger.ledger import open_ledger
from headrace.processes.forking import APART
from headrace.recipe.load import load_site
from headrace.recipe.site import Role
from headrace.recipe.unix_accounts import account
from headrace.site_secrets import HERE, Asker, LeaseSecrets, handed_over, secrets_for, secrets_of
from support.leases import lease_spec
from support.runs import make_run

GIVEN = LeaseSecrets(values={"KEY": "hunter2"}, hidden=("KEY", "MY_KEY", "NOT_THERE"))


@pytest.fixture(autouse=True)
def _own_ledger(headrace_home, monkeypatch):
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)


@pytest.fixture
def folder(tmp_path):
    return SiteFolder(tmp_path).lease("demo-gpu-1")


def test_what_is_started_does_not_inherit_them_nor_what_is_airflows(folder, monkeypatch):
    """A lease runs user code, and outlives Airflow (pains 22)."""
    outer = {"KEY": "old", "MY_KEY": "hunter2", "AIRFLOW__API_AUTH__JWT_SECRET": "s",
             "_AIRFLOW_X": "1", "HEADRACE_AIRFLOW_HOME": "/somewhere"}  # fmt: skip
    for name, value in outer.items():
        monkeypatch.setenv(name, value)
    with handed_over(folder, GIVEN):
        assert not outer.keys() & os.environ.keys()
        assert os.environ["HEADRACE_HOME"]
        assert secrets_of(folder) == {"KEY": "hunter2", APART: "KEY"}
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (folder.tls, folder.secrets)]
        assert modes == [0o700, 0o600]
    assert outer.items() <= os.environ.items()


def test_nothing_is_left_of_a_lease_that_did_not_start(folder, monkeypatch):
    monkeypatch.setenv("KEY", "old")
    with pytest.raises(ZeroDivisionError), handed_over(folder, GIVEN):
        raise ZeroDivisionError
    assert secrets_of(folder) == {}
    assert os.environ["KEY"] == "old"


def test_the_end_of_a_lease_whose_host_was_killed_removes_them(folder):
    write_record(folder.spec, lease_spec(folder, Role()))
    with handed_over(folder, GIVEN):
        pass
    lease_client.end(folder, grace_s=0)
    assert not folder.secrets.exists()


def test_a_damaged_file_is_not_quoted(folder):
    folder.tls.mkdir(parents=True)
    folder.secrets.write_text('{"KEY": hunter2')
    with pytest.raises(LeaseError, match="damaged") as refused:
        secrets_of(folder)
    assert "hunter" not in str(refused.value)


def site_with(**secrets):
    return load_site("laptop").model_copy(update={"secrets": secrets})


def value(source, asker=HERE):
    return secrets_for(site_with(KEY=source), asker).values["KEY"]


def of_airflow(connection, field):
    return f"{field} of {connection}"


def test_each_value_comes_from_its_source(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "t0ken")
    (tmp_path / account()).write_text("k3y\n")
    assert value("env:MY_TOKEN") == "t0ken"
    assert value(f"file:{tmp_path}/{{user}}") == "k3y"
    ada = Asker(user="ada", connection=of_airflow)
    assert value("airflow:s3.data-{user}.login", ada) == "login of s3.data-ada"
    monkeypatch.setenv("KEY", "of the environment")
    assert value("airflow:wandb.password") == "of the environment"
    assert value("airflow:wandb.password", ada) == "password of wandb"


def test_what_is_started_inherits_neither_the_secret_nor_what_it_was_taken_from(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "t0ken")
    found = secrets_for(site_with(KEY="env:MY_TOKEN"), HERE)
    assert {*found.hidden} == {"KEY", "MY_TOKEN"}
    assert "t0ken" not in repr(found)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("env:NOT_THERE", "Secret KEY of site laptop is not set: .* no variable NOT_THERE"),
        ("file:/not/there", "Secret KEY of site laptop cannot be read: /not/there"),
        ("env:EMPTY", "Secret KEY of site laptop is empty"),
        ("file:/dev/null", "Secret KEY of site laptop is empty"),
        ("airflow:wandb.password", r"connection 'wandb', which only.*\n.*set KEY in the env"),
    ],
)
def test_a_secret_that_cannot_be_had_is_told_by_name(source, told, monkeypatch):
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(SecretError, match=told):
        value(source)


def test_what_is_no_text_is_not_quoted(tmp_path):
    (tmp_path / "key").write_bytes(b"hunter2\xff")
    with pytest.raises(SecretError, match="is not a text") as refused:
        value(f"file:{tmp_path}/key")
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize("user", ["", "../ada", "-x", "a b", "ada/..", "ada\n", "{user}", "."])
def test_a_hostile_name_of_a_user_leads_nowhere(user):
    asked = []
    with pytest.raises(SecretError, match="depends on the user"):
        value("airflow:wandb-{user}.password", Asker(user=user, connection=asked.append))
    assert not asked
    assert value("airflow:wandb.login", Asker(user=user, connection=of_airflow))


def test_no_machine_is_asked_for_without_the_secrets():
    run = replace(make_run(), site=site_with(KEY="env:NOT_THERE"))
    with pytest.raises(SecretError, match="NOT_THERE"):
        run_leases.acquire(run, "cpu")
    assert not open_ledger().leases(run_id=run.run_id)
    assert not run.site_folder.leases.exists()
