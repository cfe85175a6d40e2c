"""Machines in use: open leases, what runs on them, how busy their nodes are; reads only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.clusters import overview
from headrace.clusters.overview import LeaseView
from headrace.errors import StepError, UnknownNameError
from headrace.files.atomic import is_there, read_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.record import Record
from headrace.steps.history import UsageRow, newest_use
from headrace.steps.mailbox import StepSpec
from headrace.suites.records import SuiteSummary


class LeaseInUse(Record):
    """An open lease at one moment."""

    site: str
    lease: LeaseView
    running: tuple[str, ...] = ()
    """Names of the steps that run on it."""
    nodes: tuple[UsageRow, ...] = ()
    """The newest figures of each node that trains; none of others, which nobody measures."""
    damage: str = ""
    """Why no more is known: a file cannot be read; else empty."""


def leases_in_use() -> tuple[LeaseInUse, ...]:
    """Open leases of all sites that the ledger knows, the oldest first."""
    return tuple(
        each
        for row in open_ledger().active_leases()
        if (each := _in_use(LeaseFolder(Path(row.folder)), row.site_name)) is not None
    )


def _in_use(folder: LeaseFolder, site: str) -> LeaseInUse | None:
    try:
        view = overview.view(folder)
    except UnknownNameError:  # its folder was removed meanwhile
        return None
    if not view.state.is_active:  # the ledger does not know yet
        return None
    found = LeaseInUse(site=site, lease=view)
    try:
        steps = [*_running(folder)]
        began_at = time.time() - view.age_s  # rows before are of an earlier lease of the run
        rows = (row for step in steps for row in _usage(step))
        nodes = _newest(row for row in rows if row.at >= began_at)
    except StepError as error:
        return found.model_copy(update={"damage": error.what})
    return found.model_copy(update={"running": tuple(each.name for each in steps), "nodes": nodes})


def _running(folder: LeaseFolder) -> Iterator[StepSpec]:
    for step in overview.steps_of(folder):
        if not (is_there(step.exit) or is_there(step.result)):
            spec = read_record(step.spec, StepSpec)
            yield from () if spec is None else (spec,)


def _usage(step: StepSpec) -> Iterator[UsageRow]:
    """Newest rows of the nodes on which a step, or trials of it, train."""
    run = RunFolder(Path(step.run_folder))
    if step.kind == "train":
        yield from newest_use(run).nodes
    elif step.kind == "suite":
        summary = read_record(run.summary, SuiteSummary)
        for trial in summary.running if summary else ():
            yield from newest_use(run.trial(trial.number)).nodes


def _newest(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    """One row for each node: trials that share one tell the same."""
    newest = {row.node: row for row in sorted(rows, key=lambda row: row.at)}
    return tuple(newest[node] for node in sorted(newest))
