"""What a probe has found, with what it took by the ledger; two probes side by side."""

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
"""A run has a recipe; of that of a probe only role and nodes count."""

_USUAL_ROLE = "gpu"
_NODES_OF_POOL = 2


def overrides_for(site: Site, options: ProbeOptions) -> tuple[str, ...]:
    """What a probe changes of its recipe.

    The usual role is `gpu`, else the site's first one; usual are all nodes of a gang, up to 2 of a
    pool.

    Raises:
        UnknownNameError: The site has no such role.
        UserError: It has too few nodes.
    """
    nodes = options.nodes
    name = options.role or (_USUAL_ROLE if _USUAL_ROLE in site.roles else next(iter(site.roles)))
    if name not in site.roles:
        what = f"Site {site.name} has no role '{name}'"
        raise UnknownNameError(what, nearest(name, site.roles))
    own = site.roles[name]
    if nodes is not None and nodes > own.nodes:
        raise UserError(
            f"{nodes} nodes are asked of role '{name}', which has {own.nodes}",
            f"Ask for fewer, or raise roles.{name}.nodes of site {site.name}.",
        )
    most = own.nodes if own.kind == "gang" else min(own.nodes, _NODES_OF_POOL)
    return ("name=probe", f"train.role={name}", f"train.nodes={nodes or most}")


class Probed(Record):
    """A probe that has ended."""

    run_id: str
    record: ProbeRecord
    rows: tuple[Summary, ...]
    efficiency: float | None
    """What all ranks of the training give, as a share of as many times what one gives."""
    report: str
    images: dict[str, str]
    """Digests of the images of its containers, by path."""
    elapsed_s: float
    """Seconds from the request to the end, waiting in a queue included."""
    node_s: float
    usd: float | None
    """US dollars; null where no price is known."""
    cpu_use: float | None
    """Mean share of the CPUs of its nodes that was busy, of whatever ran there."""
    gpu_use: float | None


class Comparison(Record):
    """Two probes side by side."""

    before: Probed
    """What the other one is compared with."""
    after: Probed
    differences: tuple[Difference, ...]
    alone: tuple[Summary, ...]
    """Figures that only one of them has, or each with other settings."""


def probed(run_id: str) -> Probed:
    """What a probe has found.

    Raises:
        UnknownNameError: There is no such run.
        StepError: It is no probe, or has not ended well.
    """
    run = open_ledger().run(run_id)
    folder = RunFolder(Path(run.folder))
    record = read_record(folder.probe, ProbeRecord)
    if record is None:
        raise StepError(
            f"Run {run_id} has no probe.json: it is no probe, or has not ended well",
            f"`headrace runs` lists runs; look at it: headrace status {run_id}",
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
    """Two probes, figure by figure."""
    differences, alone = compared(before.rows, after.rows)
    return Comparison(before=before, after=after, differences=differences, alone=alone)


def write_probe_report(run_id: str) -> Path:
    """Write `report.html` of a probe; gives where."""
    from headrace_probes.report_html import report_of

    return _write(run_id, REPORT, report_of(probed(run_id)))


def write_comparison(found: Comparison) -> Path:
    """Write the report of a comparison beside that of the second probe; gives where."""
    from headrace_probes.report_html import report_of_comparison

    name = f"compared-with-{found.before.run_id}.html"
    return _write(found.after.run_id, name, report_of_comparison(found))


def _write(run_id: str, name: str, html: str) -> Path:
    file = RunFolder(Path(open_ledger().run(run_id).folder)).report / name
    write_text(file, html)
    return file
