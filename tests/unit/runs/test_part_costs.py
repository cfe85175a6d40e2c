"""A suite over several sites: its trials, machines and money, each counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder, SiteFolder
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.recipe.site import SitePrices
from headrace.runs.costs import run_cost
from headrace.runs.parts import PartStatus
from headrace.runs.trials import note_trials
from headrace.runs.usage import note_usage
from headrace.states import LeaseState, StepState
from headrace.status.run import RunRows
from headrace.suites.records import Assigned, Withdrawn
from support.ledger_rows import USED_AT, attempt_row, lease_row, machine_row, run_row
from support.suite_journal import added, ended, failed, journal, started

SITES = {"lab": 1800.0, "box": 3600.0}
"""US dollars per hour of the one machine of each site."""


@pytest.fixture
def suite(headrace_home: Path, tmp_path: Path) -> RunRecord:
    """A suite with a part at each site, whose machine was there for 100 s."""
    ledger, whole = open_ledger(), run_row("suite", kind="suite", folder=f"{tmp_path}/suite")
    (tmp_path / "suite").mkdir()
    ledger.add_run(whole)
    for site, usd_per_hour in SITES.items():
        part = run_row(
            f"suite-at-{site}", key=f"suite/at/{site}", kind="part", site_name=site,
            folder=f"{tmp_path}/suite-at-{site}",
        )  # fmt: skip
        Path(part.folder).mkdir()
        ledger.add_run(part)
        names = {"lease_id": f"lease-{site}", "run_id": part.run_id, "site_name": site}
        closed = {"state": LeaseState.CLOSED, "ended_at": USED_AT}
        ledger.add_lease(lease_row(**names, **closed, owner="ann"), max_active=9)
        times = {"started_at": 100.0, "ended_at": 200.0, "billed_s": 100.0}
        ledger.put_machines(
            [machine_row(f"i-{site}", lease_id=f"lease-{site}", usd_per_hour=usd_per_hour, **times)]
        )
    return whole


def _of(site: str) -> dict[str, object]:
    usage = AttemptUsage(node=f"i-{site}")
    return {"lease_id": f"lease-{site}", "machines": (f"i-{site}",), "usage": usage}


def _folder(name: str, suite: RunRecord) -> RunFolder:
    return RunFolder(Path(suite.folder).with_name(name))


def _run_trials(suite: RunRecord) -> None:
    """Trial 1 runs at the lab, 2 is withdrawn there before its start, 3 moves and ends at box."""
    lost = failed(3, is_final=False, finished_at=120.0, **_of("lab"))
    best = ended(3, 0.5, 2, environment="H200", weights="ab", **_of("box"))
    at_lab = (added(1), added(2), added(3), started(1), started(3), ended(1, 1.0, **_of("lab")))
    journal(_folder("suite-at-lab", suite), *at_lab, lost, Withdrawn(number=2), Withdrawn(number=3))
    moved = added(3).model_copy(update={"attempts": 1})
    journal(_folder("suite-at-box", suite), moved, started(3, 2), best)
    whole = [added(number) for number in (1, 2, 3)]
    sites = [Assigned(number=number, site="lab") for number in (1, 2, 3)]
    copies = [
        started(1, site="lab"), ended(1, 1.0, site="lab", **_of("lab")),
        started(3, site="lab"), lost.model_copy(update={"site": "lab"}),
        Assigned(number=3, site=""), Assigned(number=3, site="box"),
        started(3, 2, site="box"), best.model_copy(update={"site": "box"}),
    ]  # fmt: skip
    journal(_folder("suite", suite), *whole, *sites, *copies)
    for name in ("suite", "suite-at-lab", "suite-at-box"):
        note_trials(_folder(name, suite))


def test_trials_know_their_site_and_a_part_forgets_those_that_left_it(suite: RunRecord):
    _run_trials(suite)
    rows = open_ledger().trials("suite")
    assert [(row.state.value, row.site, row.attempts) for row in rows] == [
        ("succeeded", "lab", 1), ("queued", "lab", 0), ("succeeded", "box", 2)
    ]  # fmt: skip
    assert (rows[2].environment, rows[2].weights) == ("H200", "ab")
    counted = open_ledger().trials_counted(["suite-at-lab", "suite-at-box"])
    assert counted == {
        "suite-at-lab": {StepState.SUCCEEDED: 1}, "suite-at-box": {StepState.SUCCEEDED: 1}
    }  # fmt: skip
    (at_box,) = open_ledger().trials("suite-at-box")
    assert at_box.attempts == 2
    journal(_folder("suite-at-lab", suite), added(2))
    note_trials(_folder("suite-at-lab", suite))
    assert [row.number for row in open_ledger().trials("suite-at-lab")] == [1, 2]


def test_attempts_at_all_sites_are_paid_for_once(suite: RunRecord):
    _run_trials(suite)
    assert [(row.trial, row.attempt, row.node_s) for row in open_ledger().usage("suite")] == [
        (1, 1, 60.0), (3, 1, 20.0), (3, 2, 60.0)
    ]  # fmt: skip
    assert [row.usd for row in open_ledger().trials("suite")] == [30.0, None, 10.0 + 60.0]
    sums = {by: open_ledger().usage_sums(by, run_id="suite") for by in ("site", "trial", None)}
    assert {each.name: each.usd for each in sums["site"]} == {"box": 100.0, "lab": 50.0}
    assert {each.name: each.usd for each in sums["trial"]} == {"3": 70.0, "0": 50.0, "1": 30.0}
    assert sums[None][0].usd == 150.0
    assert [(each.name, each.usd) for each in open_ledger().usage_sums("run")] == [("suite", 150.0)]
    assert [each.usd for each in open_ledger().usage_sums()] == [150.0]
    assert [each.usd for each in open_ledger().usage_sums(run_id="suite-at-box")] == [100.0]


def test_the_cost_of_a_suite_has_its_parts_unless_only_its_own_is_wanted(suite: RunRecord):
    own, whole = run_cost("suite", whole=False), run_cost("suite")
    assert own is None
    assert whole is not None
    assert whole.usd == 150.0
    part = open_ledger().run("suite-at-lab")
    shown = [rows.cost(300.0) for rows in RunRows.of([suite, part])]
    assert [each and each.usd for each in shown] == [150.0, 50.0]
    _run_trials(suite)
    trial = RunRows.named("suite:3").cost(300.0)
    assert trial is not None
    assert (trial.usd, trial.hours) == (70.0, 80 / 3600)
    assert {each.run_id for each in open_ledger().parts_of("suite")} == {
        "suite-at-lab", "suite-at-box"
    }  # fmt: skip


def test_the_driver_of_several_sites_takes_no_machine(suite: RunRecord):
    open_ledger().add_lease(lease_row(run_id=suite.run_id, role="driver"), max_active=9)
    open_ledger().add_attempt(attempt_row("suite", run_id=suite.run_id, kind="sites"))
    note_usage(suite.run_id)
    (total,) = open_ledger().usage_sums(run_id=suite.run_id)
    assert (total.usd, total.unpriced, total.attempts) == (150.0, 0, 0)


@pytest.mark.parametrize("kind", ["suite", "part"])
def test_the_step_of_a_part_takes_no_machine_that_its_trials_take(suite: RunRecord, kind: str):
    del suite
    names = {"run_id": "suite-at-lab", "lease_id": "lease-lab", "kind": kind}
    times = {"state": StepState.SUCCEEDED, "started_at": 100.0, "finished_at": 200.0}
    open_ledger().add_attempt(attempt_row("suite", **names, **times))
    note_usage("suite-at-lab")
    (row,) = open_ledger().usage("suite")
    assert (row.node_s, row.kind) == (0.0, kind)


def _copying(home: Path, site_name: str) -> str:
    """A part with a lease, whose dataset was copied; return its id."""
    suite_id = "digits-20260102-030405-0a1b2c3d"
    part_id, site = f"{suite_id}-at-{site_name}", SiteFolder(home / site_name)
    row = run_row(part_id, key=f"{suite_id}/at/{site_name}", kind="part", site_name=site_name)
    open_ledger().add_run(row)
    folder, names = str(site.leases / "lease-1"), {"run_id": part_id, "site_name": site_name}
    lease = lease_row(lease_id=f"lease-{site_name}", **names, folder=folder)
    open_ledger().add_lease(lease, max_active=9)
    site.run(part_id).path.mkdir(parents=True)
    write_record(site.run(part_id).part, PartStatus(done=10**10, copied_bytes=10**9))
    return part_id


def test_the_copied_dataset_has_the_prices_of_the_parts_site(headrace_home: Path):
    note_usage(_copying(headrace_home, "box"))
    prices = {"box": SitePrices(usd_per_gb_month=0.02, usd_per_fetched_gb=0.09)}
    (total,) = open_ledger().usage_sums(prices=prices)
    assert (total.usd_storage, total.usd_transfer) == (0.2, 0.09)
    assert (total.node_s, total.attempts, total.unpriced) == (0.0, 0, 0)


@pytest.mark.parametrize("fault", ["damaged", "out of reach"])
def test_a_part_that_cannot_be_read_leaves_the_usage_of_others(
    headrace_home: Path, caplog: pytest.LogCaptureFixture, fault: str
):
    part_ids = [_copying(headrace_home, site) for site in ("lab", "box")]
    file = SiteFolder(headrace_home / "lab").run(part_ids[0]).part
    if fault == "damaged":
        file.write_text("{")
    else:  # reads fail with an error of the system
        file.unlink()
        file.mkdir()
    note_usage(*part_ids)
    assert open_ledger().usage(part_ids[0]) == ()
    assert [row.kind for row in open_ledger().usage(part_ids[1])] == ["copy"]
    assert f"Not all usage of run {part_ids[0]} is recorded" in caplog.text
