"""Findings of a probe, with its usage from the ledger; comparison of two probes."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import StepError, UnknownNameError, UserError, nearest
from headrace.files.atomic import read_record, write_text
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import BUILT_IN
from headrace.recipe.site import Site
from headrace.record import Record
from headrace.runs.provenance import read_provenance
from headrace_probes.probe_records import REPORT, ProbeOptions, ProbeRecord
from headrace_probes.statistics import Difference, Summary, compared, efficiency, summaries

RECIPE = str(BUILT_IN / "recipes" / "digits.yaml")
"""Recipe of a probe's run, of which only role and nodes count."""

_DEFAULT_ROLE = "gpu"
_NODES_OF_POOL = 2


def overrides_for(site: Site, options: ProbeOptions) -> tuple[str, ...]:
    """Return the overrides of a probe's recipe.

    The default role is `gpu`, or the site's first one; the default nodes are all of a gang, up to 2
    of a pool.

    Raises:
        UnknownNameError: The site has no such role.
        UserError: It has too few nodes.
    """
    nodes = options.nodes
    default = _DEFAULT_ROLE if _DEFAULT_ROLE in site.roles else next(iter(site.roles))
    name = options.role or default
    if name not in site.roles:
        what = f"Site {site.name} has no role '{name}'"
        raise UnknownNameError(what, nearest(name, site.roles))
    own = site.roles[name]
    if nodes is not None and nodes > own.nodes:
        raise UserError(
            f"{nodes} nodes are requested of role '{name}', which has {own.nodes}",
            f"Request fewer, or raise roles.{name}.nodes of site {site.name}.",
        )
    most = own.nodes if own.kind == "gang" else min(own.nodes, _NODES_OF_POOL)
    return ("name=probe", f"train.role={name}", f"train.nodes={nodes or most}")


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


def write_probe_report(run_id: str) -> Path:
    """Write `report.html` of a probe; return its path."""
    from headrace_probes.report_html import report_of

    return _write(run_id, REPORT, report_of(probed(run_id)))


def write_comparison(found: Comparison) -> Path:
    """Write the report of a comparison beside that of the second probe; return its path."""
    from headrace_probes.report_html import report_of_comparison

    name = f"compared-with-{found.before.run_id}.html"
    return _write(found.after.run_id, name, report_of_comparison(found))


def _write(run_id: str, name: str, html: str) -> Path:
    file = RunFolder(Path(open_ledger().run(run_id).folder)).report / name
    write_text(file, html)
    return file
