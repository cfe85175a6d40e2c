"""`headrace ledger show|migrate|url` and `headrace schema`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import UnknownNameError
from support.command_line import headrace


@pytest.fixture(autouse=True)
def own_ledger(headrace_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)


def output(*arguments: str) -> str:
    result = headrace(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_counts_rows(headrace_home: Path):
    lines = [line.split(maxsplit=1) for line in output("ledger", "show").splitlines()]
    assert lines == [
        ["ledger", f"sqlite:///{headrace_home}/ledger.db"],
        ["schema", "0004"],
        ["runs", "0"],
        ["leases", "0 (0 open)"],
        ["attempts", "0"],
    ]


def test_migrate_tells_the_revision():
    assert output("ledger", "migrate").endswith("has schema revision 0004.\n")
    assert output("ledger", "migrate").endswith("has schema revision 0004.\n")


def test_url_hides_the_password(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_LEDGER", "postgresql://me:secret@db/name")
    assert output("ledger", "url") == "postgresql://me:***@db/name\n"


@pytest.mark.parametrize("kind", ["recipe", "site"])
def test_schema_is_printed_or_written(kind: str, tmp_path: Path):
    file = tmp_path / "new" / "schema.json"
    assert output("schema", kind, "--out", str(file)) == f"Wrote {file}.\n"
    assert output("schema", kind) == file.read_text()
    assert json.loads(file.read_text())["title"].lower() == kind


def test_an_unknown_schema_is_answered_with_the_choices():
    with pytest.raises(UnknownNameError, match="Did you mean 'recipe'"):
        headrace("schema", "recipes")
