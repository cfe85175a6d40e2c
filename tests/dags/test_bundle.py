"""The DAG bundle: what a form offers is read anew as soon as it changes."""

from __future__ import annotations

import os

import pytest
from airflow.models.dagbag import DagPriorityParsingRequest
from airflow.utils.session import create_session
from sqlalchemy import delete, select

from headrace_airflow.bundle import HeadraceDagBundle


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
