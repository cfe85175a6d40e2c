"""How long the tables of `headrace cost` take over many attempts, in SQLite or PostgreSQL."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, get_args

import typer

from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import LeaseRecord, MachineRecord, RunRecord
from headrace.ledger.trial_rows import TrialRecord
from headrace.ledger.usage_records import UsageRecord
from headrace.ledger.usage_rows import By
from headrace.states import LeaseState, StepState
from headrace_bench import machine

_AT_ONCE = 20_000
_PER_SUITE = 100_000
_LINES = 41
_CAUSES = ("succeeded", "succeeded", "succeeded", "preempted", "out_of_memory", "lost")


def ledger(
    rows: Annotated[int, typer.Option(min=1, help="Attempts at trials.")] = 1_000_000,
    url: Annotated[
        str, typer.Option(help="An empty database; by default a SQLite file that is removed.")
    ] = "",
) -> None:
    """Enter attempts of suites in a ledger, and time each table that `headrace cost` makes of them.

    Examples:
        PYTHONPATH=tests python -m benchmarks.ledger

        … --rows 100000 --url postgresql://me:secret@localhost/empty
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        opened = Ledger.open(url or f"sqlite:///{Path(folder) / 'ledger.db'}")
        seconds = {"enter all": _timed(lambda: enter(opened, rows))}
        seconds |= {name: _timed(ask) for name, ask in _questions(opened)}
    host = machine.machine(["sqlalchemy"])
    told = {"rows": rows, "seconds": seconds, "machine": host.model_dump()}
    print(json.dumps({**told, "load": machine.load()}, indent=1))


def _questions(opened: Ledger) -> Iterator[tuple[str, Callable[[], object]]]:
    for by in get_args(By):
        run_id = "suite-0" if by == "trial" else None
        yield f"by {by}", partial(opened.usage_sums, by, run_id=run_id, limit=_LINES)
    yield "by trial, all of them", partial(opened.usage_sums, "trial", run_id="suite-0")
    yield "by user, since", lambda: opened.usage_sums("user", since="2026-06-15")
    yield "one suite by cause", lambda: opened.usage_sums("cause", run_id="suite-0")
    yield "its 50 best trials", lambda: opened.trials("suite-0", order="objective", limit=50)
    yield "its trials by state", lambda: opened.trials_counted(["suite-0"])
    yield "its 50 dearest trials", lambda: opened.trials("suite-0", order="-usd", limit=50)
    yield "1,000 more attempts", lambda: opened.put_usage(islice(_usage(2_000, seed=2), 1_000))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def enter(opened: Ledger, rows: int, folder: str = "") -> None:
    """Enter attempts at trials, and the suites that they are of, which have the same folder."""
    for number in range(-(-rows // _PER_SUITE)):
        opened.add_run(replace(_run(number), folder=folder))
        opened.add_lease(_lease(number), max_active=10**9)
        opened.put_machines(map(partial(_machine, number), range(10)))
    left = _usage(rows, seed=1)
    while some := tuple(islice(left, _AT_ONCE)):
        opened.put_trials({(row.run_id, row.trial): _trial(row) for row in some}.values(), some)


def _usage(rows: int, seed: int) -> Iterator[UsageRecord]:
    """Attempts over a year, by twenty users on four sites; each third trial is tried again."""
    draw = random.Random(seed)
    for k in range(rows):
        suite, place = divmod(k, _PER_SUITE)
        trial, attempt = divmod(place, 3)
        cause, took_s = draw.choice(_CAUSES), draw.uniform(60, 80_000)
        yield UsageRecord(
            run_id=f"suite-{suite}",
            step="suite",
            trial=2 * trial + min(attempt, 1) + 1,
            attempt=max(attempt, 1),
            kind="trial",
            lease_id=f"lease-{suite}",
            cause=cause,
            started_at=(ended_at := 1.767e9 + 31_500_000 * place / _PER_SUITE) - took_s,
            until=ended_at,
            machine_id=f"node-{k % 10}",
            train_s=took_s - 30,
            node="node-0",
            node_s=took_s,
            created_at=float(k),
        )


def _trial(row: UsageRecord) -> TrialRecord:
    return TrialRecord(
        run_id=row.run_id,
        number=row.trial,
        name=f"trial-{row.trial}",
        values={"model.lr": row.node_s},
        state=StepState.SUCCEEDED if row.cause == "succeeded" else StepState.FAILED,
        objective=row.node_s % 1,
        created_at=row.created_at,
    )


def _run(number: int) -> RunRecord:
    return RunRecord(
        run_id=f"suite-{number}",
        key=f"suite-{number}",
        recipe_name="digits",
        site_name=f"site-{number % 4}",
        recipe_fingerprint="",
        folder="",
        state=StepState.SUCCEEDED,
        created_at=float(number),
    )


def _machine(number: int, place: int) -> MachineRecord:
    return MachineRecord(
        lease_id=f"lease-{number}",
        machine_id=f"node-{place}",
        job="",
        kind="g4dn.2xlarge",
        market="",
        place="",
        created_at=1.0,
        started_at=1.767e9,
        ended_at=1.8e9,
        seen_at=1.8e9,
        billed_s=3.3e7,
        usd_per_hour=0.752,
    )


def _lease(number: int) -> LeaseRecord:
    return LeaseRecord(
        lease_id=f"lease-{number}",
        key=f"suite-{number}/gpu",
        run_id=f"suite-{number}",
        site_name=f"site-{number % 4}",
        role="gpu",
        backend="local",
        folder="",
        state=LeaseState.CLOSED,
        owner=f"user-{number % 20}",
        ended_at=1.7985e9,
        created_at=float(number),
    )


if __name__ == "__main__":
    typer.run(ledger)
