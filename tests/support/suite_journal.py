"""Suites for tests of the control side: a run's folder, and a journal as its driver writes it."""

from __future__ import annotations

from typing import Any

from headrace.files.atomic import write_json, write_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.suite import SuiteSpec
from headrace.runs.prediction import Frontier, FrontierPoint, Interval
from headrace.runs.runs import Run, files_digest
from headrace.states import FailureClass, StepState
from headrace.suites.records import (
    Added,
    Ended,
    Entry,
    SiteSummary,
    Started,
    SuiteSummary,
    Trial,
)
from support.runs import make_run


def make_suite(**changes: Any) -> Run:
    """A run of kind suite, of which no trial is there."""
    run = make_run(**changes)
    write_json(run.folder.source, run.recipe.model_dump(mode="json", by_alias=True))
    changes = {"recipe_fingerprint": files_digest(run.folder), "kind": "suite"}
    open_ledger().change_run(run.run_id, **changes)
    return run


LAB = SiteSummary(
    site="lab", state="open", slots=8, planned=8, running=2, assigned=3, ended=5,
    usd_per_hour=0.0, usd=0.0, eta_s=3725.0, expected_usd=0.0,
)  # fmt: skip
BOX = SiteSummary(site="box", state="unreachable", why="ssh: no route to host", slots=2, ended=1)
AWS = SiteSummary(
    site="aws", state="opening", slots=4, planned=2, limit=2, assigned=2, is_own=False,
    usd_per_hour=0.55, usd=0.125, speed=2.0, eta_s=600.0, expected_usd=3.5,
)  # fmt: skip


def forecasts() -> Frontier:
    """Forecasts of a suite for three policies and two deadlines each."""

    def about(mean: float) -> Interval:
        return Interval(low=mean * 0.8, mean=mean, high=mean * 1.3)

    given = (("own-first", 5, 0), ("own-first", 3, 4), ("cheapest", 4, 2), ("spread", 2, 6))
    return Frontier(
        points=tuple(
            FrontierPoint(policy=name, makespan_s=about(hours * 3600.0), usd=about(usd))
            for name, hours, usd in given
        )
    )


def over_sites(run: Run, *sites: SiteSummary) -> Run:
    """Let a suite be one over several sites: lab, box and aws unless others are named."""
    sites = sites or (LAB, BOX, AWS)
    names = tuple(each.site for each in sites)
    suite = (run.recipe.suite or SuiteSpec()).model_copy(update={"sites": names})
    write_record(run.folder.recipe, run.recipe.model_copy(update={"suite": suite}))
    summary = SuiteSummary(total=13, counts={"queued": 13}, sites=sites, eta_s=9000.0)
    write_record(run.folder.summary, summary)
    write_record(run.folder.frontier, forecasts())
    return run


def journal(run: RunFolder, *entries: Entry) -> None:
    """Append to the journal."""
    with run.journal.open("ab") as file:
        for entry in entries:
            file.write(entry.model_dump_json().encode() + b"\n")


def added(number: int, *, group: int | None = None, **values: Any) -> Added:
    """A trial that is there; two underscores in a key stand for a dot."""
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    name = "-".join(f"{key.rpartition('.')[2]}{value}" for key, value in dotted.items())
    name = name or f"trial-{number}"
    return Added(trial=Trial(number=number, name=name, values=dotted, group=group or number))


def started(number: int, attempt: int = 1, **changes: Any) -> Started:
    """An attempt that has begun."""
    return Started.model_validate(
        {"at": 100.0, "number": number, "attempt": attempt, "node": "node-a", **changes}
    )


def ended(number: int, value: float | None = None, attempt: int = 1, **changes: Any) -> Ended:
    """An attempt that has ended, well unless the changes say otherwise, with a value to seek."""
    given = () if value is None else (value,)
    values: dict[str, Any] = {
        "number": number,
        "attempt": attempt,
        "state": StepState.SUCCEEDED,
        "is_final": True,
        "started_at": 100.0,
        "finished_at": 160.0,
        "objectives": given,
        "metrics": {"val_loss": value} if given else {},
    }
    return Ended(**{**values, **changes})


def failed(number: int, attempt: int = 1, **changes: Any) -> Ended:
    """An attempt that has failed."""
    values = {"state": StepState.FAILED, "failure_class": FailureClass.USER_ERROR}
    return ended(number, None, attempt, **{**values, "message": "it broke\n  more", **changes})
