"""Leases as rich renderables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.view import duration, keep_whole
from headrace.leases.overview import LeaseView
from headrace.leases.records import EndedJob, LeaseInfo, LeaseSpec, NodeJob
from headrace.recipe.site import Role
from headrace.states import LeaseState
from headrace.steps import mailbox
from headrace.steps.records import StepSpec
from headrace.storage.atomic import read_record
from headrace.storage.layout import StepFolder

_STYLES = {
    LeaseState.READY: "green",
    LeaseState.STARTING: "yellow",
    LeaseState.CLOSED: "dim",
}


def summary(views: Sequence[LeaseView]) -> RenderableType:
    """A table of leases."""
    table = Table(
        "lease", "state", "nodes", "age", "idle", "dashboard or reason", box=None, pad_edge=False
    )
    keep_whole(table.columns[0], [view.lease_id for view in views])
    for view in views:
        busy = f"{view.num_running} running" if view.num_running else ""
        table.add_row(
            view.lease_id,
            _state(view),
            f"{view.nodes} ({view.kind})",
            duration(view.age_s),
            duration(view.idle_s) if view.idle_s is not None else busy,
            view.dashboard_url or _first_line(view.waits_for or view.why_ended),
        )
    return table


def details(
    view: LeaseView, spec: LeaseSpec, info: LeaseInfo | None, steps: Sequence[StepFolder]
) -> RenderableType:
    """Everything about one lease."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(view, spec, info):
        facts.add_row(Text(name, style="bold"), value)
    parts: list[RenderableType] = [facts]
    if view.jobs:
        parts.append(_jobs(view.jobs))
    if view.ended:
        parts.append(_ended(view.ended))
    parts.append(_steps(steps) if steps else Text("no steps yet", style="dim"))
    return Group(*parts)


def _facts(
    view: LeaseView, spec: LeaseSpec, info: LeaseInfo | None
) -> Iterator[tuple[str, RenderableType]]:
    role = spec.role
    yield "lease", view.lease_id
    yield "state", _state(view)
    if view.why_ended:
        yield "ended", Text(view.why_ended)
    if view.waits_for:
        yield "waits", Text(view.waits_for)
    yield from _node_facts(view, role)
    yield "run", view.run_id or "none"
    yield "machines", f"{view.role}: {view.kind} of {view.nodes} on backend {role.backend}"
    yield "age", f"{duration(view.age_s)} of at most {duration(role.lifetime_s)}"
    if spec.walltime is not None:
        chosen = duration(spec.walltime.seconds)
        yield "time limit", Text(f"{chosen}, chosen: {spec.walltime.why}")
    yield "idle stop", f"after {duration(role.idle_stop)} without a step"
    if view.idle_s is not None:
        yield "idle", duration(view.idle_s)
    if spec.owner is not None:
        yield "owner", f"process {spec.owner.pid} on {spec.owner.host}"
    if info is not None:
        yield "host", f"process {info.host.pid} on {info.host.host}"
        yield "job ids", ", ".join(info.job_ids) or "none"
    if view.dashboard_url:
        yield "dashboard", view.dashboard_url
    yield "folder", view.folder
    yield "log", f"{view.folder}/host.log"


def _node_facts(view: LeaseView, role: Role) -> Iterator[tuple[str, RenderableType]]:
    if view.bad_nodes:
        what = "the run's next leases do without them"
        if not role.leaves_nodes_out:
            what = "the batch system may give them again, since it cannot leave nodes out"
        yield "bad nodes", f"{', '.join(view.bad_nodes)}: {what}"
    if view.excludes:
        yield "without", f"{', '.join(view.excludes)}, where earlier leases of the run failed"
    if view.avoids:
        yield "avoids", Text("\n".join(f"{each.node}: {each.why}" for each in view.avoids))
    if view.takes_all:
        yield "takes all", Text(f"nodes, also bad ones: {view.takes_all}")


def _jobs(jobs: Sequence[NodeJob]) -> Table:
    table = Table("node", "job", "state", "why", box=None, pad_edge=False)
    for job in jobs:
        table.add_row(job.node, job.job_id, job.stage, Text(job.why))
    return table


def _ended(jobs: Sequence[EndedJob]) -> Table:
    table = Table("node", "job", "ran on", "ended", "why", box=None, pad_edge=False)
    for job in jobs:
        ago = f"{duration(max(time.time() - job.at, 0.0))} ago"
        table.add_row(job.node, job.job_id, job.host, ago, Text(_first_line(job.why)))
    return table


def _steps(steps: Sequence[StepFolder]) -> Table:
    table = Table("step", "kind", "state", "time", "message", box=None, pad_edge=False)
    for folder in steps:
        spec, result = read_record(folder.spec, StepSpec), mailbox.outcome(folder)
        status = mailbox.status(folder)
        state = result.state if result else status.state
        message = result.failure.message if result and result.failure else status.progress.phase
        table.add_row(
            spec.key if spec else str(folder.number),
            spec.kind if spec else "",
            state.value,
            duration(status.elapsed_s),
            Text(_first_line(message)),
        )
    return table


def _state(view: LeaseView) -> Text:
    return Text(view.state.value, style=_STYLES.get(view.state, "red"))


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
