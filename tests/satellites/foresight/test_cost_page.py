"""The page of costs: sums told apart, budgets of this month."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.ledger.ledger import open_ledger
from headrace.status.cost import cost_page
from support.command_line import on_a_terminal
from support.ledger_rows import lease_row, run_row, usage_row


@pytest.fixture
def ledger(headrace_home: Path, monkeypatch: pytest.MonkeyPatch):
    """Of two users, this month and one long ago."""
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    found, today = open_ledger(), time.strftime("%Y-%m-%d", time.gmtime())
    found.add_run(run_row())
    found.add_lease(lease_row(), max_active=9)
    found.put_usage(
        [
            usage_row(1, owner="ada", usd=6.0, node_s=3600.0, gpu_s=7200.0, day=today),
            usage_row(2, owner="bob", usd=2.0, node_s=3600.0, failed_s=1800.0, day=today),
            usage_row(3, owner="bob", usd=None, day="2020-01-05"),
        ]
    )
    return found


@pytest.mark.usefixtures("ledger")
def test_what_was_spent_told_apart():
    newest, oldest = cost_page("month").rows
    assert (newest.name, newest.usd, newest.hours) == (time.strftime("%Y-%m", time.gmtime()), 8, 2)
    assert (newest.gpu_hours, newest.attempts, newest.wasted_share) == (2.0, 2, 0.25)
    assert (oldest.name, oldest.unknown) == ("2020-01", True)
    assert [(row.name, row.usd) for row in cost_page("user").rows] == [("ada", 6.0), ("bob", 2.0)]


@pytest.mark.usefixtures("ledger")
def test_budgets_of_the_month(headrace_home: Path):
    sites = headrace_home / "sites"
    sites.mkdir()
    (sites / "laptop.yaml").write_text(
        f"name: laptop\nfolder: {headrace_home}\n"
        "roles: {gpu: {backend: slurm, batch: {gpus_per_node: 2}}}\n"
        f"tiers: [{{name: disk, folder: {headrace_home}/cache, budget: 1GiB}}]\n"
        "limits: {budget_month: 100, budget_user: 10, budget_team: 20, gpu_hours_team: 5}\n"
    )
    (sites / "broken.yaml").write_text("roles: 7\n")
    (headrace_home / "teams.yaml").write_text("vision: [ada, bob, eve]\nspeech: [eve]\n")
    told = {(row.key, row.whose): (row.most, row.spent) for row in cost_page().budgets}
    assert told == {
        ("limits.budget_month", ""): (100.0, 8.0),
        ("limits.budget_user", "ada"): (10.0, 6.0),
        ("limits.budget_user", "bob"): (10.0, 2.0),
        ("limits.budget_team", "vision"): (20.0, 8.0),
        ("limits.budget_team", "speech"): (20.0, 0.0),
        ("limits.gpu_hours_team", "vision"): (5.0, 4.0),
        ("limits.gpu_hours_team", "speech"): (5.0, 0.0),
    }
    (headrace_home / "teams.yaml").write_text("vision: ada\n")
    assert {row.key for row in cost_page().budgets} == {"limits.budget_month", "limits.budget_user"}


@pytest.mark.usefixtures("ledger")
def test_the_list_is_not_cut_at_80_columns():
    told = on_a_terminal("cost", "--by", "month")
    assert [line for line in told.splitlines() if len(line) > 80] == []
    assert "2020-01" in told
    assert "…" not in told
