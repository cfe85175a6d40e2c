"""Findings of ended probes, and the comparison of two."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import StepError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.record import Record
from headrace.runs.provenance import read_provenance
from headrace_probes.probe_records import REPORT, ProbeRecord
from headrace_probes.statistics import Difference, Summary, compared, efficiency, summaries


class Probed(Record):
    """An ended probe."""

    run_id: str
    record: ProbeRecord
    rows: tuple[Summary, ...]
    efficiency: float | None
    """Rate of all ranks of the training, as a share of their number times the rate of one."""
    report: str
    images: dict[str, str]
    """Digests of the images of its containers, by path."""
    elapsed_s: float
    """Seconds from the request to the end, including the time in a queue."""
    node_s: float
    usd: float | None
    """US dollars; null if a price is unknown."""
    cpu_use: float | None
    """Mean share of the CPUs of its nodes that was busy, with all processes."""
    gpu_use: float | None


class Comparison(Record):
    """Comparison of two probes."""

    before: Probed
    """The reference."""
    after: Probed
    differences: tuple[Difference, ...]
    alone: tuple[Summary, ...]
    """Figures of only one of them, or of both with different settings."""


def probed(run_id: str) -> Probed:
    """Return the findings of a probe.

    Raises:
        UnknownNameError: The run does not exist.
        StepError: It is not a probe, or has not succeeded.
    """
    run = open_ledger().run(run_id)
    folder = RunFolder(Path(run.folder))
    record = read_record(folder.probe, ProbeRecord)
    if record is None:
        raise StepError(
            f"Run {run_id} has no probe.json: it is not a probe, or has not succeeded",
            f"`headrace runs` lists runs; `headrace status {run_id}` shows this one.",
        )
    rows = summaries(record.findings.measurements)
    usage = open_ledger().usage(run_id)
    taken = [each for each in usage if each.kind == "probe"]
    usd = [each.usd for each in usage]
    known = [each for each in usd if each is not None]
    last = taken[-1] if taken else None
    return Probed(
        run_id=run_id,
        record=record,
        rows=rows,
        efficiency=efficiency(rows),
        report=str(folder.report / REPORT),
        images=read_provenance(folder).images,
        elapsed_s=(run.finished_at or record.finished_at) - run.created_at,
        node_s=sum(each.node_s for each in usage),
        usd=sum(known) if known and len(known) == len(usd) else None,
        cpu_use=None if last is None else last.cpu_use,
        gpu_use=None if last is None else last.gpu_use,
    )


def side_by_side(before: Probed, after: Probed) -> Comparison:
    """Compare two probes, figure by figure."""
    differences, alone = compared(before.rows, after.rows)
    return Comparison(before=before, after=after, differences=differences, alone=alone)
