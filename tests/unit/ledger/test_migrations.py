"""Migrations and tables tell the same story."""

from __future__ import annotations

from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from headrace.ledger import migrations
from headrace.ledger.columns import LedgerRow
from headrace.ledger.database import Database
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import REVISION, REVISION_TABLE


def test_the_newest_migration_gives_the_revision_of_the_tables():
    assert migrations.revisions()[0] == REVISION


def test_migrations_from_nothing_give_the_tables(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url)
    with Database(url).read() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"version_table": REVISION_TABLE}
        )
        assert compare_metadata(context, LedgerRow.metadata) == []


def test_a_migration_that_was_killed_half_way_leaves_nothing(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    database = Database(url)
    try:
        with database.write() as session:
            migrations.upgrade(session.connection())
            raise InterruptedError
    except InterruptedError:
        pass
    with database.read() as session:
        assert inspect(session.connection()).get_table_names() == []
    assert Ledger.open(url).summary().num_runs == 0


def test_tables_of_others_in_the_same_database_are_left_alone(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/shared.db"
    with Database(url).write() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('of somebody else')"))
    Ledger.open(url)
    with Database(url).read() as connection:
        found = connection.scalar(text("SELECT version_num FROM alembic_version"))
        assert found == "of somebody else"
