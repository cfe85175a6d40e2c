"""`headrace ledger show|migrate|export|url` and `headrace schema`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

from headrace.errors import UnknownNameError, UserError
from headrace.ledger import usage_rows
from headrace.ledger.ledger import open_ledger
from headrace.states import StepState
from support.command_line import headrace
from support.ledger_rows import lease_row, machine_row, run_row, usage_row


@pytest.fixture(autouse=True)
def own_ledger(headrace_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)


def output(*arguments: str) -> str:
    result = headrace(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_counts_rows(headrace_home: Path):
    lines = [line.strip().split(maxsplit=1) for line in output("ledger", "show").splitlines()]
    assert lines == [
        ["ledger", f"sqlite:///{headrace_home}/ledger.db"],
        ["schema", "0011"],
        ["runs", "0"],
        ["leases", "0 (0 open)"],
        ["attempts", "0"],
    ]


def test_migrate_tells_the_revision():
    assert output("ledger", "migrate").endswith("has schema revision 0011.\n")
    assert output("ledger", "migrate").endswith("has schema revision 0011.\n")


def test_each_attempt_is_a_row_of_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(usage_rows, "_BLOCK", 1000)
    ledger = open_ledger()
    ledger.add_run(run_row(state=StepState.SUCCEEDED))
    ledger.add_lease(lease_row(), max_active=1)
    ledger.put_machines([machine_row(usd_per_hour=180.0, price_source="bill"), machine_row("i-2")])
    ledger.put_usage(
        usage_row(number, machine_id="i-2" if number < 1000 else "i-1") for number in range(1, 1002)
    )
    for name, read in (
        ("attempts.parquet", pyarrow.parquet.read_table),
        ("attempts.csv", pyarrow.csv.read_csv),
    ):
        file = tmp_path / name
        assert output("ledger", "export", str(file), "--since", "2026-11") == (
            f"{file} has 1,001 rows.\n"
        )
        rows = read(file).sort_by("trial").to_pylist()
        assert [row["trial"] for row in rows] == list(range(1, 1002))
        assert (rows[0]["usd"], rows[-1]["usd"], rows[-1]["cause"]) == (None, 0.5, "succeeded")
        assert (rows[-1]["price_source"], rows[-1]["site_name"]) == ("bill", "laptop")
        assert output("ledger", "export", str(file), "--since", "2026-12").endswith(
            " has 0 rows.\n"
        )


def test_an_export_has_a_known_form(tmp_path: Path):
    with pytest.raises(UserError, match=r"\.parquet, \.csv"):
        headrace("ledger", "export", str(tmp_path / "attempts.xlsx"))
    assert not list(tmp_path.glob("*.*"))


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
