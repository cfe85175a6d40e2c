"""`headrace lease`: see, close and enter the leases of a site."""

from __future__ import annotations

import code
import importlib
import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console import open_console
from headrace.cli.lease_view import details, summary
from headrace.control.adopt import adopt as adopt_leases
from headrace.control.reaper import reap as reap_ledger
from headrace.leases import client, overview
from headrace.leases.overview import reap as reap_site
from headrace.recipe.load import load_site
from headrace.storage.layout import LeaseFolder, SiteFolder

_HELP = "Leases: the machines that runs hold."

SiteOption = Annotated[str, typer.Option(help="Name of a site, or a YAML file.")]
LeaseArgument = Annotated[str, typer.Argument(help="Id of the lease, from `headrace lease list`.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def register(app: typer.Typer) -> None:
    """Add `headrace lease …` to the command line."""
    lease = typer.Typer(help=_HELP, no_args_is_help=True)
    lease.command("list")(list_leases)
    for command in (show, close, reap, adopt, shell):
        lease.command()(command)
    app.add_typer(lease, name="lease")


def list_leases(
    ended: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    site: SiteOption = "laptop",
    as_json: JsonOption = False,
) -> None:
    """List the leases of a site, the newest first.

    Examples:
        headrace lease list

        headrace lease list --all --json
    """
    views = overview.views(_site_folder(site), ended=ended)
    if as_json:
        typer.echo(json.dumps([view.model_dump(mode="json") for view in views], indent=1))
    elif views:
        open_console().print(summary(views))
    else:
        typer.echo("No leases." if ended else "No open leases; --all lists those that have ended.")


def show(lease_id: LeaseArgument, site: SiteOption = "laptop", as_json: JsonOption = False) -> None:
    """Show one lease: machines, limits, steps, how it ended.

    Example: headrace lease show digits-20260102-030405-0a1b2c3d-gpu-1
    """
    folder = _lease_folder(site, lease_id)
    view, spec, info = overview.view(folder), client.spec(folder), client.info(folder)
    if as_json:
        content = {
            "view": view.model_dump(mode="json"),
            "spec": spec.model_dump(mode="json"),
            "info": info.model_dump(mode="json") if info else None,
        }
        typer.echo(json.dumps(content, indent=1))
        return
    open_console().print(details(view, spec, info, overview.steps_of(folder)))


def close(
    lease_id: LeaseArgument,
    site: SiteOption = "laptop",
    reason: Annotated[str, typer.Option(help="Told to whoever asks why it ended.")] = "",
    grace: Annotated[float, typer.Option(help="Seconds before its processes are killed.")] = 20.0,
) -> None:
    """Close a lease; its running steps end, nothing of it stays.

    Example: headrace lease close digits-20260102-030405-0a1b2c3d-gpu-1 --reason "wrong data"
    """
    folder = _lease_folder(site, lease_id)
    client.end(folder, grace, reason or "closed by `headrace lease close`")
    state = client.state(folder, client.spec(folder).lost_after_s)
    typer.echo(f"{lease_id} is {state.value}: {client.why_ended(folder)}")


def reap(site: SiteOption = "laptop") -> None:
    """End leases that are lost or whose owner has gone, and processes they left.

    Runs whose owner was a process that has gone are closed in the ledger; those of Airflow are left
    to its own reaper.

    Example: headrace lease reap
    """
    closed = reap_ledger(lambda _run: False, lambda _run, _step: False)
    for line in closed:
        typer.echo(line)
    ended = reap_site(_site_folder(site))
    for leftover in ended:
        typer.echo(
            f"{leftover.folder.lease_id}: {leftover.why} ({leftover.num_processes} processes ended)"
        )
    if not ended and not closed:
        typer.echo("Nothing to reap.")


def adopt(site: SiteOption = "laptop") -> None:
    """Enter open leases that the ledger does not know: it, or Airflow's database, was lost.

    Their runs come with them. What asks for such a run again, an Airflow run with the same id or
    `headrace resume`, goes on with the lease and the step that runs on it.

    Example: headrace lease adopt --site my-cluster
    """
    adopted = adopt_leases(_site_folder(site))
    for line in adopted:
        typer.echo(line)
    if not adopted:
        typer.echo("Nothing to adopt: the ledger knows all open leases.")


def shell(
    lease_id: LeaseArgument,
    site: SiteOption = "laptop",
    command: Annotated[str, typer.Option("-c", help="Python to run in place of a prompt.")] = "",
) -> None:
    """Open Python with `client` (Dask) and `fleet` connected to the lease.

    Examples:
        headrace lease shell digits-20260102-030405-0a1b2c3d-gpu-1

        headrace lease shell LEASE -c "print(client.run(lambda: __import__('os').getloadavg()))"
    """
    folder = _lease_folder(site, lease_id)
    # Dask takes half a second to load; only this command needs it
    with importlib.import_module("headrace.leases.fleet").Fleet.open(folder) as fleet:
        names = {"client": fleet.client, "fleet": fleet, "lease": folder}
        if command:
            exec(compile(command, "<command>", "exec"), names)
            return
        shown = f"client: {fleet.client}\nfleet: nodes, call, on_nodes, map\nCtrl-D leaves."
        code.interact(banner=f"Lease {lease_id}\n{shown}", local=names, exitmsg="")


def _site_folder(site: str) -> SiteFolder:
    return SiteFolder(Path(load_site(site).folder).expanduser().absolute())


def _lease_folder(site: str, lease_id: str) -> LeaseFolder:
    return overview.find(_site_folder(site), lease_id)
