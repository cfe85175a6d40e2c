"""`headrace lease`: list, watch, close and adopt leases."""

from __future__ import annotations

import code
import importlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from headrace.cli.console import (
    JsonOption,
    SiteOption,
    duration,
    facts,
    open_console,
    output_is_gone,
    tell_json,
)
from headrace.cli.listing import ListColumn, Listing, tell_list
from headrace.cli.words import cost_words, nodes_words
from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_folders import reap as reap_site
from headrace.clusters.lease_records import LeaseInfo, LeaseSpec
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder, StepFolder
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import end_processes
from headrace.processes.zygote import zygote_bytes, zygotes
from headrace.recipe.load import load_site
from headrace.recipe.site import Role
from headrace.runs.audit import Actor
from headrace.runs.costs import cost_of, has_price, start_split
from headrace.states import LeaseState
from headrace.status.lease import LeaseView, find_lease, lease_view, leases_in_use, site_leases
from headrace.steps import mailbox
from headrace.steps.mailbox import StepSpec

app = typer.Typer(name="lease", help="Leases: the machines that runs hold.", no_args_is_help=True)

_LEASE = typer.Argument(help="Id of the lease, from `headrace lease list`.")
LeaseArgument = Annotated[str, _LEASE]

_REFRESH_S = 2.0
_STYLES = {LeaseState.READY: "green", LeaseState.STARTING: "yellow", LeaseState.CLOSED: "dim"}


@app.command("list")
def list_leases(
    ended: Annotated[bool, typer.Option("--all", help="Also ended leases.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Open leases of all sites, with the load of nodes.")
    ] = False,
    site: SiteOption = "laptop",
    as_json: JsonOption = False,
) -> None:
    """List the leases of a site, the newest first.

    With **--watch** the open leases of all sites in the ledger are shown, with their steps and the
    load of their nodes and GPUs: every two seconds, until Ctrl-C. Nodes are measured while they
    train, also by trials of suites. With --json, and in a pipe, they are shown once.

    Examples:
        headrace lease list
        headrace lease list --all --json
        headrace lease list --watch
    """
    if watch:
        _watch(as_json=as_json)
        return
    views = site_leases(_site_folder(site), ended=ended)
    none = "No leases." if ended else "No open leases; --all lists ended ones, too."
    tell_list(views, _COLUMNS, none, as_json=as_json)
    if as_json:
        return
    listed = {each.lease_id for each in views}
    rows = (row for row in open_ledger().active_leases() if row.lease_id not in listed)
    if others := sorted({row.site_name for row in rows}):
        typer.echo(f"Leases of other sites are open: {', '.join(others)}. See --site and --watch.")
    if kept := zygote_bytes():
        size = decimal(kept)
        typer.echo(f"Imported for the next ones: {size}; `headrace lease close --kept` frees it.")


@app.command()
def show(lease_id: LeaseArgument, site: SiteOption = "laptop", as_json: JsonOption = False) -> None:
    """Show one lease: machines, limits, steps, how it ended.

    Example: headrace lease show digits-20260102-030405-0a1b2c3d-gpu-1
    """
    folder = _lease_folder(site, lease_id)
    view, spec, info = lease_view(folder), lease_client.spec(folder), lease_client.info(folder)
    machines = open_ledger().machines(lease_id=lease_id)
    cost = cost_of(filter(has_price, machines), time.time())
    if as_json:
        rows = [asdict(each) | start_split(each) for each in machines]
        parts = {"view": view, "spec": spec, "info": info, "cost": cost if cost.lines else None}
        tell_json({**parts, "machines": rows})
        return
    open_console().print(_details(view, spec, info, tuple(mailbox.submitted(folder))))
    if cost.lines:
        open_console().print(f"cost: {cost_words(cost)}")


@app.command()
def close(
    lease_id: Annotated[str | None, _LEASE] = None,
    site: SiteOption = "laptop",
    kept: Annotated[
        bool, typer.Option("--kept", help="End processes that stay imported (`keep_warm`).")
    ] = False,
    reason: Annotated[str, typer.Option(help="Shown as the reason of the lease's end.")] = "",
    grace: Annotated[float, typer.Option(help="Seconds before its processes are killed.")] = 20.0,
) -> None:
    """Close a lease: its running steps end, nothing of it stays.

    Examples:
        headrace lease close digits-20260102-030405-0a1b2c3d-gpu-1 --reason "wrong data"
        headrace lease close --kept
    """
    from headrace.execution.reap import close_lease  # lists do without

    if kept:
        end_processes(zygotes())
        typer.echo("No process stays imported.")
    if lease_id is None:
        if not kept:
            raise typer.BadParameter("Name a lease, or --kept.")
        return
    folder = _lease_folder(site, lease_id)
    close_lease(folder, Actor.here(), grace, reason)
    files = LeaseFiles.read(folder)
    typer.echo(f"{lease_id} is {files.state().value}: {files.why_ended}")


@app.command()
def reap(site: SiteOption = "laptop") -> None:
    """End leases that are lost or whose owner has ended, and their remaining processes.

    Runs whose owner process has ended are closed in the ledger; Airflow's own reaper closes those
    of Airflow. EC2 instances are ended in all regions of all sites if their lease has ended, or if
    they should have ended long ago; `headrace cloud list` shows them.

    Example: headrace lease reap
    """
    from headrace.execution.reap import reap as reap_ledger  # lists do not need it

    with open_console(stderr=True).status("Looking …"):
        closed = reap_ledger(lambda _run: None, lambda _run, _step: False)
    for line in closed:
        typer.echo(line)
    ended = reap_site(_site_folder(site))
    for leftover in ended:
        typer.echo(
            f"{leftover.folder.lease_id}: {leftover.why} ({leftover.num_processes} processes ended)"
        )
    if not ended and not closed:
        typer.echo("Nothing to reap.")


@app.command()
def adopt(site: SiteOption = "laptop") -> None:
    """Enter runs and open leases that the ledger does not have, because a ledger was lost.

    A run comes with its leases and steps. If the same run is requested again (an Airflow run of the
    same id, or `headrace resume`), it continues with the lease and its running step.

    Example: headrace lease adopt --site my-cluster
    """
    from headrace.execution.reap import adopt as adopt_leases  # lists do not need it

    adopted = adopt_leases(_site_folder(site))
    for line in adopted:
        typer.echo(line)
    if not adopted:
        typer.echo("Nothing to adopt: the ledger has all runs and open leases.")


@app.command()
def shell(
    lease_id: LeaseArgument,
    site: SiteOption = "laptop",
    command: Annotated[str, typer.Option("-c", help="Python code, in place of a prompt.")] = "",
) -> None:
    """Open Python with `client` (Dask) and `fleet` connected to the lease.

    Examples:
        headrace lease shell digits-20260102-030405-0a1b2c3d-gpu-1
        headrace lease shell LEASE -c "print(client.run(lambda: __import__('os').getloadavg()))"
    """
    folder = _lease_folder(site, lease_id)
    # Dask takes half a second to load; only this command needs it
    with importlib.import_module("headrace.clusters.fleet").Fleet.open(folder) as fleet:
        names = {"client": fleet.client, "fleet": fleet, "lease": folder}
        if command:
            exec(compile(command, "<command>", "exec"), names)
            return
        shown = f"client: {fleet.client}\nfleet: nodes, call, on_nodes, map\nCtrl-D leaves."
        code.interact(banner=f"Lease {lease_id}\n{shown}", local=names, exitmsg="")


def _site_folder(site: str) -> SiteFolder:
    return SiteFolder(Path(load_site(site).folder).expanduser().absolute())


def _lease_folder(site: str, lease_id: str) -> LeaseFolder:
    return find_lease(_site_folder(site), lease_id)


def _watch(*, as_json: bool) -> None:
    console = open_console()
    if as_json:
        tell_json(leases_in_use())
        return
    if not console.is_terminal:
        console.print(_in_use(leases_in_use()))
        return
    with Live(console=console, auto_refresh=False) as screen:
        while not output_is_gone():
            screen.update(_in_use(leases_in_use()), refresh=True)
            time.sleep(_REFRESH_S)


def _in_use(found: Sequence[LeaseView]) -> RenderableType:
    """Return open leases, each with its nodes."""
    if not found:
        return Text("No open leases.")
    here = sum(each.nodes_here for each in found)
    wanted = sum(each.nodes or 0 for each in found)
    leases = f"{len(found)} open lease{'s' if len(found) > 1 else ''}"
    at = time.strftime("%H:%M:%S")
    head = Text(f"{leases}, {here} of at most {wanted} nodes are there · {at}", style="dim")
    return Group(head, *(part for each in found for part in _parts(each)))


def _parts(lease: LeaseView) -> Iterator[RenderableType]:
    parts = (
        *(f"{lease.role} on {lease.site}", lease.state.value, f"nodes {nodes_words(lease)}"),
        *(", ".join(lease.running) or _used(lease), f"age {duration(lease.age_s)}"),
        *(lease.waits_for.partition("\n")[0], lease.damage),
    )
    yield Text(f"\n{lease.lease_id}", style="bold", overflow="fold")
    line = Text(" · ".join(filter(None, parts)), overflow="fold")
    yield Padding(line, (0, 0, 0, 2), expand=False)
    if lease.use:
        nodes = Listing.of(lease.use, *_NODE_COLUMNS)
        yield Padding(nodes, (0, 0, 0, 2), expand=False)


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _watts(watts: float | None) -> str:
    return "" if watts is None else f"{watts:.0f} W"


def _details(
    view: LeaseView, spec: LeaseSpec, info: LeaseInfo | None, steps: Sequence[StepFolder]
) -> RenderableType:
    lists = ((view.jobs, _JOB_COLUMNS), (view.ended, _ENDED_COLUMNS))
    parts = (Listing.of(rows, *columns) for rows, columns in lists if rows)
    last = _steps(steps) if steps else Text("no steps yet", style="dim")
    return Group(facts(_facts(view, spec, info)), *parts, last)


def _facts(
    view: LeaseView, spec: LeaseSpec, info: LeaseInfo | None
) -> Iterator[tuple[str, str | Text]]:
    role, limit = spec.role, spec.walltime
    yield from (("lease", view.lease_id), ("state", _state(view)), ("ended", view.why_ended))
    yield from (("waits", view.waits_for), *_node_facts(view, role), ("run", view.run_id or "none"))
    yield "machines", f"{view.role}: {view.kind} of {view.nodes} on backend {role.backend}"
    yield "age", f"{duration(view.age_s)} of at most {duration(role.lifetime_s)}"
    yield "time limit", f"{duration(limit.seconds)}, chosen: {limit.why}" if limit else ""
    yield "idle stop", f"after {duration(role.idle_stop)} without a step"
    yield "idle", duration(view.idle_s)
    for name, process in (("owner", spec.owner), ("host", info.host if info else None)):
        yield name, f"process {process.pid} on {process.host}" if process else ""
    yield "job ids", (", ".join(info.job_ids) or "none") if info else ""
    yield from (("dashboard", view.dashboard_url), ("folder", view.folder))
    yield "log", f"{view.folder}/host.log"


def _node_facts(view: LeaseView, role: Role) -> Iterator[tuple[str, str]]:
    what = "the run's next leases avoid them"
    if not role.leaves_nodes_out:
        what = "the batch system may assign them again, because it cannot exclude nodes"
    bad, excludes = ", ".join(view.bad_nodes), ", ".join(view.excludes)
    yield "bad nodes", bad and f"{bad}: {what}"
    yield "without", excludes and f"{excludes}, where earlier leases of the run failed"
    yield "avoids", "\n".join(f"{each.node}: {each.why}" for each in view.avoids)
    yield "takes all", view.takes_all and f"nodes, also bad ones: {view.takes_all}"


def _steps(steps: Sequence[StepFolder]) -> Listing:
    listed = Listing("step", "kind", "state", "time", "message", figures=("time",))
    for folder in steps:
        spec, result = read_record(folder.spec, StepSpec), mailbox.outcome(folder)
        status = mailbox.status(folder)
        state = result.state if result else status.state
        message = result.failure.message if result and result.failure else status.progress.phase
        listed.add(
            spec.key if spec else str(folder.number),
            spec.kind if spec else "",
            state.value,
            duration(status.elapsed_s),
            message.partition("\n")[0],
        )
    return listed


def _state(view: LeaseView) -> Text:
    return Text(view.state.value, style=_STYLES.get(view.state, "red"))


def _used(view: LeaseView) -> str:
    if view.num_running:
        return f"{view.num_running} running"
    return "" if view.idle_s is None else f"idle {duration(view.idle_s)}"


def _reason(view: LeaseView) -> str:
    return (view.waits_for or view.why_ended).partition("\n")[0]


_COLUMNS = (
    ListColumn("lease", lambda view: view.lease_id),
    ListColumn("state", _state),
    ListColumn("nodes", nodes_words, is_label=True),
    ListColumn("age", lambda view: duration(view.age_s), is_figure=True),
    ListColumn("use", _used),
    ListColumn("dashboard or reason", lambda view: view.dashboard_url or _reason(view)),
)
_NODE_COLUMNS = (
    ListColumn("node", lambda row: row.node),
    ListColumn("CPU", lambda row: _share(row.cpu), is_figure=True),
    ListColumn("memory", lambda row: _share(row.memory), is_figure=True),
    ListColumn("GPUs", lambda row: _share(row.gpu), is_figure=True, is_optional=True),
    ListColumn(
        "their memory", lambda row: _share(row.gpu_memory), is_figure=True, is_optional=True
    ),
    ListColumn("power", lambda row: _watts(row.gpu_power_w), is_figure=True, is_optional=True),
)
_JOB_COLUMNS = (
    ListColumn("node", lambda job: job.node),
    ListColumn("job", lambda job: job.job_id, is_label=True),
    ListColumn("state", lambda job: job.stage),
    ListColumn("why", lambda job: job.why),
)
_ENDED_COLUMNS = (
    *_JOB_COLUMNS[:2],
    ListColumn("ran on", lambda job: job.host, is_label=True),
    ListColumn("ended", lambda job: f"{duration(time.time() - job.at)} ago", is_label=True),
    ListColumn("why", lambda job: job.why.partition("\n")[0]),
)
