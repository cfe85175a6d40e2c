"""The secrets of a lease: one file, its owner's alone, as long as the lease."""

from __future__ import annotations

import os
import stat

import pytest

from headrace.clusters import lease_client
from headrace.clusters.lease_secrets import LeaseSecrets, handed_over, secrets_of
from headrace.errors import LeaseError
from headrace.files.atomic import write_record
from headrace.files.layout import SiteFolder
from headrace.recipe.site import Role
from support.leases import lease_spec

GIVEN = LeaseSecrets(values={"KEY": "hunter2"}, hidden=("KEY", "MY_KEY", "NOT_THERE"))


@pytest.fixture
def folder(tmp_path, headrace_home):
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
        assert secrets_of(folder) == {"KEY": "hunter2"}
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
