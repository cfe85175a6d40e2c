"""URLs of the ledger, what is shown of them, and what a ledger that cannot be opened says."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from headrace.errors import LedgerError
from headrace.ledger import engines, migrations
from headrace.ledger.columns import LedgerRow
from headrace.ledger.database import Database, default_url, masked
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import REVISION, REVISION_TABLE
from support.ledger_rows import run_row
from support.mounts import tell_mounts
from support.small_disk import fill, read_only, small_disk


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////home/me/ledger.db", "sqlite:////home/me/ledger.db"),
        ("postgresql://me:secret@db/name", "postgresql://me:***@db/name"),
        ("postgresql://me@db/name", "postgresql://me@db/name"),
        ("postgresql://me:se@cr:et/@db:5432/name", "postgresql://me:***@db:5432/name"),
        ("postgresql://:secret@db/name", "postgresql://:***@db/name"),
        ("postgresql:///n?host=/s&password=secret&x=1", "postgresql:///n?host=/s&password=***&x=1"),
        ("postgresql:///n?sslpassword=secret", "postgresql:///n?sslpassword=***"),
        ("not a url", "not a url"),
    ],
)
def test_passwords_are_masked(url: str, shown: str):
    assert masked(url) == shown


def test_an_at_sign_in_the_query_hides_too_much_rather_than_too_little():
    assert "secret" not in masked("postgresql://me:secret@db/name?options=a@b")


@pytest.mark.parametrize("url", ["postgresql://me:secret@db:port/name", "me:secret@db", ""])
def test_a_url_that_cannot_be_read_keeps_the_password_secret(url: str):
    with pytest.raises(LedgerError, match="cannot be read") as caught:
        Database(url)
    assert caught.value.__suppress_context__
    assert "HEADRACE_LEDGER" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_environment_names_the_ledger(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_LEDGER", "postgresql://db/name")
    assert default_url() == "postgresql://db/name"


def test_without_it_the_ledger_lies_in_the_home_folder(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    assert default_url() == f"sqlite:///{headrace_home}/ledger.db"


def test_sqlite_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """pains 36: never SQLite on NFS."""
    tell_mounts(monkeypatch, tmp_path, f"server:/x {tmp_path} nfs4 rw 0 0")
    with pytest.raises(LedgerError, match=r"network file system \(nfs4\)") as caught:
        Ledger.open(f"sqlite:///{tmp_path}/sub/ledger.db")
    assert "postgresql://" in str(caught.value)
    assert not (tmp_path / "sub").exists()


def test_a_sqlite_ledger_is_for_its_owner_alone(tmp_path: Path):
    """Its rows hold the links of dashboards."""
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (tmp_path / name).touch(mode=0o644)
        (tmp_path / name).chmod(0o644)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.add_run(run_row("r1"))
    found = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert "ledger.db" in found
    assert set(found.values()) == {0o600}


def test_a_link_into_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    far, near = tmp_path / "far", tmp_path / "near"
    far.mkdir()
    near.symlink_to(far)
    tell_mounts(monkeypatch, tmp_path, f"server:/x {far} lustre rw 0 0")
    with pytest.raises(LedgerError, match="lustre"):
        Ledger.open(f"sqlite:///{near}/ledger.db")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_sqlite_in_memory_is_refused(url: str):
    with pytest.raises(LedgerError, match="names no file"):
        Ledger.open(url)


def test_another_database_is_refused_with_the_choices():
    with pytest.raises(LedgerError, match="names the database 'mysql'") as caught:
        Ledger.open("mysql://me:secret@db/name")
    assert "Valid: postgresql, sqlite" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path):
    file = tmp_path / "ledger.db"
    file.write_text("no database " * 100)
    with pytest.raises(LedgerError, match="not a database"):
        Ledger.open(f"sqlite:///{file}")
    assert file.read_text() == "no database " * 100


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger.open(f"sqlite:///{tmp_path}/file/ledger.db")


def test_postgresql_that_is_not_there_is_named_without_the_password(tmp_path: Path):
    with pytest.raises(LedgerError, match="cannot be used") as caught:
        Ledger.open(f"postgresql://me:secret@/name?host={tmp_path}")
    assert "secret" not in str(caught.value)


def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path):
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert ledger.runs() == ()


def _fill_up(ledger: Ledger) -> None:
    for number in range(40):
        ledger.add_run(run_row(run_id=f"run-{number}", key=f"key-{number}"))


def test_a_full_disk_is_told_with_the_way_on(tmp_path: Path):
    with small_disk(tmp_path / "small", "512k") as folder:
        ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
        filler = fill(folder)
        with pytest.raises(LedgerError, match="cannot be written, its disk is full") as caught:
            _fill_up(ledger)
        assert "Free some space" in caught.value.hint
        assert "headrace resume RUN" in caught.value.hint
        filler.unlink()
        _fill_up(ledger)


def _ledger(folder: Path) -> Ledger:
    ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
    ledger.add_run(run_row(run_id="first", key="first"))
    return ledger


def _left_by_a_killed_process(folder: Path) -> None:
    """Have the newest run in the log alone, as a process leaves it that is killed."""
    code = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("update headrace_runs set run_id = 'second'")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code, str(folder / "ledger.db")], check=False)
    assert (folder / "ledger.db-wal").stat().st_size
    (folder / "ledger.db-shm").unlink()


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_ledger_is_read_on_a_full_disk_and_nothing_is_entered(tmp_path: Path, was_killed: bool):
    with small_disk(tmp_path / "small", "1m") as folder:
        _ledger(folder)
        if was_killed:
            _left_by_a_killed_process(folder)
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        fill(folder)
        ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
        assert [run.run_id for run in ledger.runs()] == ["second" if was_killed else "first"]
        with pytest.raises(LedgerError, match="cannot be written, its disk is full"):
            _fill_up(ledger)
        (folder / "filler").unlink()
        after = {file.name: file.read_bytes() for file in folder.iterdir()}
        assert {name: after[name] for name in before} == before
        _fill_up(ledger)
        assert len(ledger.runs()) == 41


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_ledger_is_read_in_a_read_only_folder(tmp_path: Path, was_killed: bool):
    folder = tmp_path / "home"
    folder.mkdir()
    kept = _ledger(folder)
    if was_killed:
        _left_by_a_killed_process(folder)
    with read_only(folder):
        for ledger in (kept, Ledger.open(f"sqlite:///{folder}/ledger.db")):
            assert [run.run_id for run in ledger.runs()] == ["second" if was_killed else "first"]
            with pytest.raises(LedgerError, match=r"ledger\.db cannot be written: ") as caught:
                _fill_up(ledger)
            assert f"ls -ld {folder}/ledger.db" in caught.value.hint
    _fill_up(kept)


def test_a_read_only_folder_without_a_ledger_is_named(tmp_path: Path):
    with read_only(tmp_path), pytest.raises(LedgerError, match="Read-only file system") as caught:
        Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    assert "Mount its file system for writing" in caught.value.hint
    assert "HEADRACE_LEDGER" in caught.value.hint


def test_a_ledger_of_another_account_is_named(tmp_path: Path):
    if os.getuid() != 0:
        pytest.skip("another account takes root")
    _ledger(tmp_path)
    os.seteuid(65534)
    try:
        with pytest.raises(LedgerError, match="cannot be opened: Permission denied: ") as caught:
            Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    finally:
        os.seteuid(0)
    assert "Give this account the right to use it" in caught.value.hint


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"x" * len(good),
        lambda good: good[:5000],
        lambda good: good[: len(good) // 2],
        lambda good: good[:100] + bytes(len(good) - 100),
        lambda good: good[:4096] + b"\xff" * (len(good) - 4096),
    ],
    ids=["no database", "short", "half", "zeros", "all but the first page"],
)
def test_a_damaged_ledger_is_named_with_the_way_to_a_new_one(
    tmp_path: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "my home"
    home.mkdir()
    _ledger(home)
    file = home / "ledger.db"
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    with pytest.raises(LedgerError, match=r"ledger\.db is damaged: ") as caught:
        Ledger.open(f"sqlite:///{file}").runs()
    assert file.read_bytes() == damaged
    assert "headrace lease adopt --site SITE" in caught.value.hint
    command = re.search("mkdir .* damaged", caught.value.hint)[0]
    monkeypatch.chdir(tmp_path)
    subprocess.run(command, shell=True, check=True)
    assert (tmp_path / "damaged" / "ledger.db").read_bytes() == damaged
    assert Ledger.open(f"sqlite:///{file}").runs() == ()


def test_a_ledger_that_another_process_holds_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engines, "_BUSY_TIMEOUT_S", 0.2)
    ledger = _ledger(tmp_path)
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"is held by another process: .* locked") as caught:
            _fill_up(ledger)
    assert f"fuser -v {tmp_path}/ledger.db" in caught.value.hint


def test_a_ledger_that_is_removed_meanwhile_is_named(tmp_path: Path):
    ledger = _ledger(tmp_path)
    (tmp_path / "ledger.db").unlink()
    with pytest.raises(LedgerError, match=r"ledger\.db was removed: no such table") as caught:
        ledger.runs()
    assert "headrace lease adopt --site SITE" in caught.value.hint
    assert Ledger.open(f"sqlite:///{tmp_path}/ledger.db").runs() == ()


def test_a_change_of_the_columns_raises_the_revision():
    """Ledgers are migrated only if their revision is another: raise it, then correct the hash."""
    names = sorted(f"{each}" for table in LedgerRow.metadata.tables.values() for each in table.c)
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    assert (REVISION, digest) == ("0011", "d096cc9f3684")


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
