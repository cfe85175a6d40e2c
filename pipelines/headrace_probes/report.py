"""The recipe of a probe's run, and the reports of a probe and of a comparison."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import UnknownNameError, UserError, nearest
from headrace.files.atomic import write_text
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import BUILT_IN
from headrace.recipe.site import Site
from headrace_probes.probe_records import REPORT, ProbeOptions
from headrace_probes.statistics import Comparison, probed

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
