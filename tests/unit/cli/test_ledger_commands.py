"""`headrace ledger show|migrate|url` and `headrace schema`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import ledger, schema
from headrace.errors import UnknownNameError


@pytest.fixture
def app(headrace_home: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    app = typer.Typer()
    ledger.register(app)
    schema.register(app)
    return app


def output(app: typer.Typer, *arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_counts_rows(app: typer.Typer, headrace_home: Path):
    lines = [line.split(maxsplit=1) for line in output(app, "ledger", "show").splitlines()]
    assert lines == [
        ["ledger", f"sqlite:///{headrace_home}/ledger.db"],
        ["schema", "0002"],
        ["runs", "0"],
        ["leases", "0 (0 open)"],
        ["attempts", "0"],
    ]


def test_migrate_tells_the_revision(app: typer.Typer):
    assert output(app, "ledger", "migrate").endswith("has schema revision 0002.\n")
    assert output(app, "ledger", "migrate").endswith("has schema revision 0002.\n")


def test_url_hides_the_password(app: typer.Typer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_LEDGER", "postgresql://me:secret@db/name")
    assert output(app, "ledger", "url") == "postgresql://me:***@db/name\n"


@pytest.mark.parametrize("kind", ["recipe", "site"])
def test_schema_is_printed_or_written(app: typer.Typer, kind: str, tmp_path: Path):
    file = tmp_path / "new" / "schema.json"
    assert output(app, "schema", kind, "--out", str(file)) == f"Wrote {file}.\n"
    assert output(app, "schema", kind) == file.read_text()
    assert json.loads(file.read_text())["title"].lower() == kind


def test_an_unknown_schema_is_answered_with_the_choices(app: typer.Typer):
    with pytest.raises(UnknownNameError, match="Did you mean 'recipe'"):
        CliRunner().invoke(app, ["schema", "recipes"], catch_exceptions=False)
