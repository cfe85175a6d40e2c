"""What a user may ask of runs, suites and leases from the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fastapi import APIRouter

from headrace.clusters import client
from headrace.errors import UserError
from headrace.files.layout import LeaseFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.records import RunRecord
from headrace.record import Record
from headrace.runs.runs import open_run
from headrace.runs.stopping import ask_to_stop
from headrace.runs.suites import ask, find_suite
from headrace_airflow.airflow_api import DagRunAddress
from headrace_airflow.web.access import User, acts, check_acts_on

router = APIRouter(prefix="/act", dependencies=[acts])

_GRACE_S = 20.0


class Named(Record):
    """A run or a lease, by its id."""

    id: str


class SuiteAct(Named):
    """What is asked of a suite, or of some of its trials."""

    what: Literal["pause", "resume", "cancel", "retry"]
    trials: tuple[int, ...] = ()
    """Their numbers; empty: all."""


class Done(Record):
    """What was asked for."""

    done: str
    """In words for the user."""


@router.post("/cancel")
def cancel(named: Named, user: User) -> Done:
    """Ask the running steps of a run to stop."""
    _check(open_ledger().run(named.id), user)
    asked = ask_to_stop(open_run(named.id), f"asked by {user.get_name()} in Airflow")
    return Done(done=f"Asked to stop: {', '.join(asked)}")


@router.post("/suite")
def suite(act: SuiteAct, user: User) -> Done:
    """Pause a suite, go on with it, cancel or retry trials."""
    record = find_suite(act.id)
    _check(record, user)
    ask(record, act.what, act.trials, by=f"{user.get_name()} in Airflow")
    which = f" of trials {', '.join(map(str, act.trials))}" if act.trials else ""
    return Done(done=f"Asked for: {act.what}{which}")


@router.post("/lease")
def lease(named: Named, user: User) -> Done:
    """Close a lease; its running steps end."""
    row = open_ledger().lease(named.id)
    _check(open_ledger().run(row.run_id), user)
    if not row.state.is_active:
        what = f"Lease {row.lease_id} is {row.state.value} already: {row.why_ended}"
        raise UserError(what, "There is nothing to close.")
    client.end(LeaseFolder(Path(row.folder)), _GRACE_S, f"closed by {user.get_name()} in Airflow")
    return Done(done=f"Lease {row.lease_id} is closed")


def _check(record: RunRecord, user: User) -> None:
    """Refuse who may not act on runs of the DAG that a run belongs to."""
    address = DagRunAddress.parse(record.owner)
    if address is not None:
        check_acts_on(user, address.dag_id)
