"""`headrace cost` and the page of costs: the ledger's sums, budgets of this month."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, UserError
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import first_day
from headrace.states import StepState
from headrace.status.cost import cost_page
from support.access import write_site
from support.command_line import headrace, on_a_terminal
from support.factories import write_site as site_with
from support.ledger_rows import add_ended_lease, day, run_row, usage_row

_HOUR_S = 3600.0


@pytest.fixture
def spent(headrace_home: Path) -> None:
    """A suite with a failed attempt and idle machines, and a run on machines without a price."""
    ledger, end = open_ledger(), day("2026-11-23")
    for run_id in ("run-1", "run-2"):
        ledger.add_run(run_row(run_id, state=StepState.SUCCEEDED))
    october = {"run_id": "run-2", "site_name": "cluster", "ended_at": day("2026-10-31")}
    add_ended_lease("lease-1", 4.0, 2.0, owner="tester")
    add_ended_lease("lease-2", 1.0, None, owner="tester", **october)
    add_ended_lease("lease-3", 1.0, 1.5, owner="ann")
    ledger.put_usage(
        [
            usage_row(1, node_s=_HOUR_S, cause="out_of_memory"),
            usage_row(1, attempt=2, node_s=2 * _HOUR_S, started_at=end - 2 * _HOUR_S,
                      train_s=1.6 * _HOUR_S, energy_wh=1500.0),
            usage_row(2, node_s=0.4 * _HOUR_S, queue_s=_HOUR_S),
            usage_row(step="pack", kind="pack", lease_id="lease-3", node_s=_HOUR_S,
                      stored_bytes=10**10, fetched_bytes=10**9),
            usage_row(run_id="run-2", lease_id="lease-2", step="train", kind="train",
                      until=october["ended_at"], node_s=_HOUR_S),
        ]
    )  # fmt: skip


def output(*words: str) -> str:
    ended = headrace("cost", *words)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def cells(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


@pytest.mark.usefixtures("spent")
def test_a_trial_costs_what_all_its_attempts_took_and_waste_is_named():
    """pains 37."""
    text = output("run-1", "--by", "trial")
    first = ["2", "3.00", "0.00", "0.00", "6.00", "0%", "13%", "33%", "1.50"]
    assert cells(text)["1"] == first
    assert cells(text)["2"][3:5] == ["1.00", "0.80"]  # hours in the queue
    assert cells(text)["2"][-1] == "—"
    assert cells(text)["all"][4] == "9.50"
    assert "\n(no trial)" in text
    assert "40% of the machines' hours were wasted" in text
    assert "kWh were measured in 2.00 of 5.00 machine hours." in text
    assert "Price of g4dn.2xlarge on-demand: $1.5 to $2 an hour ()." in text
    assert cells(output("run-1"))["trial"][0] == "3"


@pytest.mark.usefixtures("spent")
def test_what_has_no_price_is_named_and_never_0():
    """pains 37."""
    text = output()
    assert cells(text)["2026-10"][1:5] == ["1.00", "0.00", "0.00", "?"]
    assert cells(text)["all"][4] == "9.50+?"
    assert "No price is known of role gpu of cluster:" in text
    rows = json.loads(output("--site", "cluster", "--by", "cause", "--json"))
    (row,) = [each for each in rows if each["cause"] == "succeeded"]
    assert (row["usd"], row["unpriced"], row["wasted"], row["energy_wh"]) == (None, 1, 0.0, None)
    assert "No price" not in output("--since", "2026-11")


@pytest.mark.usefixtures("spent")
def test_it_is_grouped_by_whatever_attempts_have_in_common():
    assert cells(output("--by", "user", "--since", "2026-11"))["ann"][4] == "1.50"
    assert cells(output("--by", "cause"))["out_of_memory"][4] == "2.00"
    assert {"run-1", "run-2"} < cells(output("--by", "run")).keys()
    rows = list(csv.DictReader(io.StringIO(output("--by", "site", "--csv"))))
    assert {row["site"]: row["usd"] for row in rows} == {"laptop": "9.5", "cluster": ""}
    text = output("--by", "site", "--limit", "1")
    assert "… and more" in text
    assert "cluster  " not in text
    assert "… and more" not in output("--by", "site", "--limit", "2")
    assert output("--user", "nobody") == "No costs are recorded.\n"


@pytest.mark.usefixtures("spent")
def test_storage_and_transfer_have_the_prices_of_the_site(headrace_home: Path):
    assert "Besides machines" not in output()
    site_with(
        headrace_home, "laptop", prices={"usd_per_gb_month": 0.023, "usd_per_fetched_gb": 0.09}
    )
    text = output("run-1")
    assert "Besides machines: 0.23 USD a month for 10 GB of packed datasets." in text
    assert "Besides machines: 0.0900 USD for 1 GB read from object stores." in text
    rows = {row["kind"]: row for row in json.loads(output("run-1", "--json"))}
    assert rows["pack"]["usd_storage"] == pytest.approx(0.23)
    assert rows["pack"]["usd_transfer"] == 0.09
    assert rows["trial"]["usd_storage"] is None
    services = cells(output("run-1", "--by", "service"))
    assert services["machines"] == ["5", "h", "9.50"]
    assert services["storage"] == ["10", "GB", "for", "a", "month", "0.23"]
    (_, _, transfer) = json.loads(output("run-1", "--by", "service", "--json"))
    assert transfer == {"service": "transfer", "usd": 0.09, "amount": 1.0, "unit": "GB"}


@pytest.mark.usefixtures("spent")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--by", "sites"], "Did you mean 'site'"),
        (["--by", "trial"], "headrace cost RUN --by trial"),
        (["--since", "last week"], "is not a day"),
        (["nope"], "no run 'nope'"),
    ],
)
def test_mistakes_are_told(words: list[str], message: str):
    with pytest.raises(HeadraceError) as caught:
        headrace("cost", *words)
    assert message in str(caught.value)


def test_days_can_be_counted_back():
    assert first_day("") == ""
    assert first_day("2026-11-03") == "2026-11-03"
    assert first_day("0d") > first_day("400d") > "2020"
    with pytest.raises(UserError, match="thirty days"):
        first_day("2026")


@pytest.mark.usefixtures("spent")
def test_what_may_be_taken_this_month_is_told_with_what_is(headrace_home: Path):
    write_site(
        headrace_home,
        None,
        limits={"budget_user": 40, "gpu_hours_team": 2.5},
        roles={"gpu": {"backend": "slurm", "batch": {"gpus_per_node": 4}}},
    )
    (headrace_home / "teams.yaml").write_text("vision: [ann, eve]\n")
    of_ann = {"owner": "ann", "site_name": "club", "run_id": "run-2"}
    add_ended_lease("club-1", 0.5, 6.0, ended_at=time.time(), **of_ann)
    told = [line.split() for line in output().partition("this month")[2].splitlines()[1:]]
    assert told == [
        ["club", "ann", "$3.00", "$40.00", "limits.budget_user"],
        ["club", "vision", "2.00", "GPU", "hours", "2.50", "GPU", "hours", "limits.gpu_hours_team"],
    ]
    assert "club ann" not in output("--user", "eve")
    assert "this month" not in output("--user", "bob")


@pytest.fixture
def ledger(headrace_home: Path, monkeypatch: pytest.MonkeyPatch):
    """Of two users, this month and one long ago."""
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    found, now = open_ledger(), time.time()
    found.add_run(run_row())
    add_ended_lease("lease-1", 1.0, 6.0, owner="ada", ended_at=now)
    add_ended_lease("lease-2", 1.0, 2.0, owner="bob", ended_at=now)
    add_ended_lease("lease-3", 1.0, None, owner="bob", ended_at=day("2020-01-05"))
    took = {"until": now, "started_at": now - 3600.0, "node_s": 3600.0}
    found.put_usage(
        [
            usage_row(1, gpus=2.0, **took),
            usage_row(2, lease_id="lease-2", **took | {"node_s": 1800.0}),
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
