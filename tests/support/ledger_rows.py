"""Rows for ledger tests, and what many processes do to one ledger at once."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import func, select

from headrace.errors import CapacityError
from headrace.ledger.audit_rows import ActRecord
from headrace.ledger.database import Database
from headrace.ledger.ledger import Ledger, open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord, MachineRecord, RunRecord, WaitRecord
from headrace.ledger.trial_rows import TrialRecord
from headrace.ledger.usage_records import UsageRecord
from headrace.states import LeaseState, StepState

Result = TypeVar("Result")

NUM_PROCESSES = 20

_ASKED_AGAIN_S = 0.05
"""Twenty that ask without a pause keep each other from the ledger."""


def run_row(run_id: str = "run-1", **changes: Any) -> RunRecord:
    """A run that goes on."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "key": f"key of {run_id}",
        "recipe_name": "digits",
        "site_name": "laptop",
        "recipe_fingerprint": "f1",
        "folder": f"/runs/{run_id}",
        "state": StepState.RUNNING,
        "owner": "tester",
        "overrides": ("seed=1",),
        "created_at": 1.0,
    }
    return RunRecord(**{**values, **changes})


def lease_row(lease_id: str = "lease-1", **changes: Any) -> LeaseRecord:
    """A lease that starts."""
    values: dict[str, Any] = {
        "lease_id": lease_id,
        "key": "run-1/gpu",
        "run_id": "run-1",
        "site_name": "laptop",
        "role": "gpu",
        "backend": "local",
        "folder": f"/leases/{lease_id}",
        "state": LeaseState.STARTING,
        "created_at": 1.0,
    }
    return LeaseRecord(**{**values, **changes})


def act_row(**changes: Any) -> ActRecord:
    """Somebody has cancelled a run."""
    values: dict[str, Any] = {"user": "ada", "through": "Airflow", "what": "cancel"}
    return ActRecord(**{"created_at": 1.0, **values, **changes})


def attempt_row(step: str = "train", attempt: int = 1, **changes: Any) -> AttemptRecord:
    """An attempt that waits."""
    run_id = changes.get("run_id", "run-1")
    values: dict[str, Any] = {
        "run_id": run_id,
        "step": step,
        "kind": step,
        "attempt": attempt,
        "key": f"{run_id}/{step}/{attempt}",
        "lease_id": "lease-1",
        "state": StepState.QUEUED,
        "created_at": 1.0,
    }
    return AttemptRecord(**{**values, **changes})


def machine_row(machine_id: str = "i-1", **changes: Any) -> MachineRecord:
    """A machine that costs, at a price that nobody has told."""
    values: dict[str, Any] = {
        "lease_id": "lease-1",
        "machine_id": machine_id,
        "job": "headrace-lease-1",
        "kind": "g4dn.2xlarge",
        "market": "on-demand",
        "place": "us-east-1a",
        "created_at": 1.0,
        "started_at": 2.0,
        "seen_at": 3.0,
        "billed_s": 60.0,
    }
    return MachineRecord(**{**values, **changes})


def trial_row(number: int = 1, **changes: Any) -> TrialRecord:
    """A trial that waits."""
    values: dict[str, Any] = {
        "run_id": "run-1",
        "number": number,
        "name": f"trial-{number}",
        "values": {"seed": number},
        "group": 1,
        "created_at": 1.0,
    }
    return TrialRecord(**{**values, **changes})


def usage_row(trial: int = 0, **changes: Any) -> UsageRecord:
    """An attempt at a trial that ended on 2026-11-23 after ten seconds."""
    values: dict[str, Any] = {
        "run_id": "run-1",
        "step": "suite",
        "trial": trial,
        "kind": "trial",
        "lease_id": "lease-1",
        "cause": "succeeded",
        "until": USED_AT,
        "node_s": 10.0,
        "created_at": 1.0,
    }
    return UsageRecord(**{**values, **changes})


def day(text: str) -> float:
    """Seconds since the epoch of a day, as `2026-11-23`, in UTC."""
    return datetime.fromisoformat(f"{text}T00:00:00+00:00").timestamp()


USED_AT = day("2026-11-23")


def add_ended_lease(lease_id: str, hours: float, usd_per_hour: float | None, **changes: Any) -> str:
    """Enter a lease of one machine that has ended, by default on the day of `usage_row`.

    Returns:
        Its id.
    """
    row = lease_row(lease_id, **{"state": LeaseState.CLOSED, "ended_at": USED_AT, **changes})
    open_ledger().add_lease(row, max_active=99)
    paid = {"billed_s": 3600.0 * hours, "usd_per_hour": usd_per_hour}
    times = {"started_at": row.ended_at, "ended_at": row.ended_at}
    open_ledger().put_machines([machine_row(lease_id=lease_id, **paid, **times)])
    return lease_id


def in_processes(function: Callable[[str, int], Result], url: str) -> list[Result]:
    """Call `function(url, number)` in twenty processes that start together."""
    context = multiprocessing.get_context("forkserver")
    with context.Manager() as manager:
        barrier = manager.Barrier(NUM_PROCESSES)
        with ProcessPoolExecutor(NUM_PROCESSES, mp_context=context) as pool:
            calls = [
                pool.submit(_together, barrier, function, url, number)
                for number in range(NUM_PROCESSES)
            ]
            return [call.result(timeout=200) for call in calls]


def _together(
    barrier: Any, function: Callable[[str, int], Result], url: str, number: int
) -> Result:
    barrier.wait(timeout=120)
    return function(url, number)


def write_rows(url: str, number: int) -> bool:
    """Open the ledger and enter a shared run, an own run, its lease and ten attempts, all ended.

    Returns:
        Whether this process entered the shared run.
    """
    ledger = Ledger.open(url)
    was_first = ledger.add_run(run_row(f"shared-{number}", key="shared"))
    run_id, lease_id = f"run-{number}", f"lease-{number}"
    ledger.add_run(run_row(run_id))
    ledger.add_lease(lease_row(lease_id, run_id=run_id), max_active=1000)
    for attempt in range(1, 11):
        ledger.add_attempt(attempt_row("train", attempt, run_id=run_id, lease_id=lease_id))
        ledger.set_attempt(run_id, "train", attempt, state=StepState.SUCCEEDED, number=attempt)
    ledger.set_lease_state(lease_id, LeaseState.CLOSED, ended_at=2.0)
    ledger.finish_run(run_id, StepState.SUCCEEDED, 2.0, {"accuracy": number / 100})
    return was_first


def take_place(url: str, number: int) -> bool:
    """Try to take one of three places on the site.

    Returns:
        Whether there was one.
    """
    try:
        Ledger.open(url).add_lease(lease_row(f"lease-{number}"), max_active=3)
    except CapacityError:
        return False
    return True


def wait_for_place(url: str, number: int) -> bool:
    """Ask for one of four places until one is there, or others have them; 18 of 20 are ada's.

    Once all have asked, the first ends the leases that had the places before.

    Returns:
        Whether it got one.
    """
    ledger = Ledger.open(url)
    row = lease_row(f"lease-{number}", key=f"key-{number}", owner="ada" if number < 18 else "bob")
    while True:
        try:
            ledger.add_lease(row, max_active=4, waits=True)
        except CapacityError:
            taken = ledger.active_leases("laptop")
            if number == 0 and _num_waiting(url) == NUM_PROCESSES:
                for lease in taken:
                    if lease.owner == "":
                        ledger.set_lease_state(lease.lease_id, LeaseState.CLOSED, ended_at=2.0)
            if len(taken) == 4 and all(lease.owner for lease in taken):
                return False
            time.sleep(_ASKED_AGAIN_S)
        else:
            return True


def _num_waiting(url: str) -> int | None:
    with Database(url).read() as session:
        return session.scalar(select(func.count()).select_from(WaitRecord))
