"""Runs end in order when they have cost what they may."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from headrace.batch.ec2_meter import Ec2Meter
from headrace.batch.machines import Machine
from headrace.clusters import client
from headrace.errors import BatchError, BudgetError
from headrace.ledger.ledger import open_ledger
from headrace.processes import ProcessIdentity
from headrace.recipe.load import BUILT_IN, load_site
from headrace.runs import budget, reaper
from headrace.runs.costs import most_cost, run_cost
from headrace.runs.leases import acquire
from headrace.runs.reaper import reap
from headrace.runs.runs import Run
from headrace.runs.settling import settle
from support.ledger_rows import machine_row
from support.runs import lease_on_disk, make_run

_USD_PER_HOUR = 3600.0  # a dollar a second


@pytest.fixture
def site(headrace_home: Path) -> Callable[..., None]:
    """Writes site `aws`: a pool and a gang of two nodes, a dollar a second each."""

    def write(budget_usd: float | None, **ec2: Any) -> None:
        laptop = yaml.safe_load((BUILT_IN / "sites" / "laptop.yaml").read_text())
        prices = {"g5.xlarge": {"on-demand": _USD_PER_HOUR}}
        place: dict[str, Any] = {
            "region": "us-east-1",
            "image": "ami-1",
            "instance_types": ["g5.xlarge"],
        }
        place |= {"prices": prices, "prices_as_of": "2026-06-17", **ec2}
        role = {"backend": "ec2", "nodes": 2, "lifetime": "1h", "ec2": place}
        roles = {"cpu": role | {"kind": "pool"}, "gpu": role | {"kind": "gang"}}
        limits = {"budget": budget_usd}
        content = laptop | {"name": "aws", "roles": roles, "limits": limits}
        content["folder"] = str(headrace_home / "aws")
        (headrace_home / "sites").mkdir(exist_ok=True)
        (headrace_home / "sites" / "aws.yaml").write_text(yaml.safe_dump(content))

    return write


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """What EC2 tells of any lease; no host is started, and EC2 itself never asked."""
    found: list[Machine] = []
    monkeypatch.setattr(Ec2Meter, "machines", lambda _self, _name: tuple(found))
    monkeypatch.setattr(client, "start", lambda _folder, _spec: None)
    monkeypatch.setattr(reaper, "known_places", lambda: SimpleNamespace(roles=()))
    monkeypatch.setattr(client, "end", lambda folder, **_: client.request_close(folder, "ended"))
    return found


def _instance(age_s: float, machine_id: str = "i-1") -> Machine:
    return Machine(
        machine_id=machine_id,
        job="headrace-x",
        kind="g5.xlarge",
        market="on-demand",
        place="us-east-1a",
        started_at=time.time() - age_s,
    )


def _open_lease(role: str) -> tuple[Run, Any]:
    run = make_run(site="aws")
    return run, run.lease_folder(lease_on_disk(run, role, ProcessIdentity.of()))


def test_a_run_that_has_cost_its_budget_gets_no_lease(
    site: Callable[..., None], machines: list[Machine]
):
    """The next step is to raise it, which a run that goes on sees at once."""
    site(1000.0)
    run = make_run(site="aws")
    lease_id = acquire(run, "gpu")
    open_ledger().put_machines(
        [machine_row(lease_id=lease_id, ended_at=9.0, billed_s=850.0, usd_per_hour=_USD_PER_HOUR)]
    )
    assert acquire(run, "gpu") == lease_id  # it goes on with what it has
    with pytest.raises(BudgetError) as caught:
        acquire(run, "cpu")
    assert caught.value.what == (
        f"Run {run.run_id} has cost $850.00, and `limits.budget` of site aws is $1000.00: "
        "no further lease of role cpu is started "
        "(2 x 1:00:00 x $3600 an hour of g5.xlarge (on-demand), site file of 2026-06-17)"
    )
    assert caught.value.hint == f"Raise it in the site file, then: headrace resume {run.run_id}"
    assert not BudgetError.failure_class.is_retried
    site(1100.0)
    assert acquire(run, "cpu") == f"{run.run_id}-cpu-1"


def test_a_budget_that_cannot_be_kept_is_told_before_anything_starts(
    site: Callable[..., None], machines: list[Machine]
):
    site(1000.0, prices={})
    run = make_run(site="aws")
    with pytest.raises(BudgetError, match=r"no price is known of g5\.xlarge \(on-demand\): write"):
        acquire(run, "gpu")
    assert open_ledger().leases(run_id=run.run_id) == ()
    site(None)
    assert acquire(run, "gpu")


def test_a_gang_stops_with_a_checkpoint_and_the_run_ends_with_the_reason(
    site: Callable[..., None], machines: list[Machine]
):
    """Before it has cost more than it may: what runs goes on for a moment."""
    site(1000.0)
    run, folder = _open_lease("gpu")
    machines.append(_instance(1000.0 - budget.AHEAD_S - 30.0))
    budget.keep(run)
    assert not folder.notice.exists()
    machines.append(_instance(31.0, "i-2"))
    budget.keep(run)
    assert folder.notice.read_text() == (
        "the run has used up its budget of $1000.00 (`limits.budget` of the site)"
    )
    assert not folder.close.exists()
    os.utime(folder.notice, (0, 0))  # nothing stopped
    reap(lambda _run: False, lambda _run, _step: False)
    assert "limits.budget" in folder.close.read_text()
    with pytest.raises(BudgetError):
        acquire(run, "gpu")


def test_a_pool_over_its_budget_closes_at_once(site: Callable[..., None], machines: list[Machine]):
    site(1000.0)
    run, folder = _open_lease("cpu")
    machines.append(_instance(1000.0))
    budget.keep(run)
    assert "used up its budget of $1000.00" in folder.close.read_text()


def test_machines_are_counted_when_a_lease_is_settled_or_later(
    site: Callable[..., None], machines: list[Machine], monkeypatch: pytest.MonkeyPatch
):
    """pains 22, 37: also where EC2 did not answer, or the run's driver had been killed."""
    site(None)
    run, folder = _open_lease("gpu")
    row = open_ledger().lease(folder.lease_id)
    machines.append(_instance(100.0))
    other, of_other = _open_lease("cpu")
    settle(other, open_ledger().lease(of_other.lease_id))
    assert [each.machine_id for each in open_ledger().machines(run_id=other.run_id)] == ["i-1"]

    def silent(_self: Ec2Meter, _name: str) -> tuple[Machine, ...]:
        raise BatchError("EC2 does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Ec2Meter, "machines", silent)
        settle(run, row)
    assert open_ledger().machines(run_id=run.run_id) == ()
    reap(lambda _run: False, lambda _run, _step: False)
    (counted,) = open_ledger().machines(run_id=run.run_id)
    assert (counted.usd_per_hour, counted.ended_at) == (_USD_PER_HOUR, None)
    machines[0] = machines[0].model_copy(update={"ended_at": machines[0].started_at + 90.0})
    reap(lambda _run: False, lambda _run, _step: False)
    (ended,) = open_ledger().machines(run_id=run.run_id)
    assert ended.billed_s == 90.0
    cost = run_cost(run.run_id)
    assert cost is not None
    assert cost.usd == pytest.approx(90.0)


def test_the_most_that_a_lease_costs(site: Callable[..., None]):
    site(None, markets=["spot", "on-demand"], max_price=0.5)
    most = most_cost(load_site("aws").roles["gpu"])
    assert most is not None
    assert most.usd == 7200.0
    assert most_cost(load_site("laptop").roles["gpu"]) is None
