"""Findings of probes: medians, spreads, and whether two differ by more than their repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median, quantiles

from headrace.errors import StepError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.difference import Change, changes
from headrace.record import Record
from headrace.runs.provenance import read_provenance
from headrace.steps.history import facts_of_all
from headrace_probes.probe_records import REPORT, Measurement, ProbeFigure, ProbeRecord

CERTAIN = 0.01
"""Probability below which a difference does not come from the spread of the repeats.

With five repeats of each probe, all of one must be above all of the other.
"""


class Summary(Measurement):
    """One line of a report: a figure with the values of all repeats on all nodes."""

    median: float
    spread: float
    """Distance between the quartiles, as a share of the median."""
    nodes: int
    """Nodes that measured it on their own."""
    slowest: str
    """The worst node, if there are several."""

    @property
    def of_limit(self) -> float | None:
        """Median as a share of the limit."""
        return self.median / self.limit if self.limit else None


class Difference(ProbeFigure):
    """A figure of two probes."""

    before: float
    """Median of the first probe."""
    after: float
    """Median of the second probe."""
    loss: float
    """How much the second one is worse, as a share of the first; negative if better."""
    p: float
    """Probability of a difference of this size or more between repeats on the same machines."""

    @property
    def is_beyond(self) -> bool:
        """Whether it is more than the spread of the repeats; other load may be the cause."""
        return self.p < CERTAIN


def spread_of(values: Sequence[float]) -> float:
    """Return the distance between the quartiles as a share of the median; 0 for one value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = quantiles(values, method="inclusive")
    return (high - low) / middle if middle else 0.0


def summaries(measurements: Iterable[Measurement]) -> tuple[Summary, ...]:
    """Return one summary per figure, in the order of the first node's measurements."""
    grouped: dict[ProbeFigure, list[Measurement]] = {}
    for each in measurements:
        grouped.setdefault(each.key, []).append(each)
    return tuple(_summary(group) for group in grouped.values())


def _summary(group: Sequence[Measurement]) -> Summary:
    first = group[0]
    values = tuple(value for each in group for value in each.values)
    sign = -1 if first.lower_is_better else 1
    slowest = min(group, key=lambda each: sign * median(each.values))
    limits = [each.limit for each in group if each.limit is not None]
    of_all = {
        "values": values,
        "limit": median(limits) if limits else None,
        "node": first.node if len(group) == 1 else "",
    }
    return Summary(
        **dict(first) | of_all,
        median=median(values),
        spread=spread_of(values),
        nodes=len(group),
        slowest=slowest.node if len(group) > 1 else "",
    )


def compared(
    before: Sequence[Summary], after: Sequence[Summary]
) -> tuple[tuple[Difference, ...], tuple[Summary, ...]]:
    """Return differences of figures that both probes have, and figures of only one of them."""
    second = {each.key: each for each in after}
    both = tuple(_difference(each, second[each.key]) for each in before if each.key in second)
    common = {each.key for each in both}
    alone = tuple(each for each in (*before, *after) if each.key not in common)
    return both, alone


def _difference(before: Summary, after: Summary) -> Difference:
    from scipy.stats import mannwhitneyu

    change = (after.median - before.median) / before.median if before.median else 0.0
    return Difference(
        **dict(before.key),
        before=before.median,
        after=after.median,
        loss=change if before.lower_is_better else -change,
        p=float(mannwhitneyu(before.values, after.values, method="exact").pvalue),
    )


def efficiency(rows: Iterable[Summary]) -> float | None:
    """Return the rate of all ranks of a training, as a share of their number times that of one.

    None if not both were measured.
    """
    by_ranks = {each.ranks: each.median for each in rows if each.part == "train"}
    most = max(by_ranks, default=1)
    if most == 1 or 1 not in by_ranks:
        return None
    return by_ranks[most] / (most * by_ranks[1])


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
    machines: tuple[Change, ...] = ()
    """Processors, GPUs and libraries that differ."""


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
    taken = [each for each in open_ledger().usage(run_id) if each.kind == "probe"]
    sums = open_ledger().usage_sums(run_id=run_id)
    last = taken[-1] if taken else None
    return Probed(
        run_id=run_id,
        record=record,
        rows=rows,
        efficiency=efficiency(rows),
        report=str(folder.report / REPORT),
        images=read_provenance(folder).images,
        elapsed_s=(run.finished_at or record.finished_at) - run.created_at,
        node_s=sums[0].node_s if sums else 0.0,
        usd=sums[0].usd if sums and not sums[0].unpriced else None,
        cpu_use=None if last is None else last.cpu_use,
        gpu_use=None if last is None else last.gpu_use,
    )


def side_by_side(before: Probed, after: Probed) -> Comparison:
    """Compare two probes, figure by figure."""
    differences, alone = compared(before.rows, after.rows)
    old, new = (facts_of_all(each.record.findings.machines.values()) for each in (before, after))
    return Comparison(
        before=before, after=after, differences=differences, alone=alone, machines=changes(old, new)
    )
