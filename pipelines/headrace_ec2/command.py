"""`headrace cloud`: instances that headrace runs in EC2, and their end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli import arguments
from headrace.cli.console import JsonOption, duration, open_console, tell_json
from headrace.cli.listing import Listing
from headrace.errors import UnknownNameError, UserError, nearest
from headrace_ec2 import strays
from headrace_ec2.strays import Ec2Regions, Stray, known_regions

app = typer.Typer(
    name="cloud", help="Instances of EC2 that headrace has started.", no_args_is_help=True
)

_EXIT_LEFT = 1


_LEASE_STYLES = {"alive": "green", "ended": "red", "unknown": "yellow"}

SiteFilter = Annotated[
    str | None,
    typer.Option(
        "--site",
        help="Only the regions of this site; default: of all sites.",
        autocompletion=arguments.sites,
    ),
]


@app.command("list")
def list_found(site: SiteFilter = None, as_json: JsonOption = False) -> None:
    """List instances with headrace's tags, of all users, and leftover volumes.

    A *stray* is a resource without an owner: its lease ended at least a minute ago, or it is half
    an hour past the end in its tag. `headrace lease reap` and the reaper's DAG end strays.
    The exit code is 1 if a region did not answer.

    Examples:
        headrace cloud list

        headrace cloud list --site aws --json
    """
    regions = known_regions(site)
    found, unreached = _find(regions)
    if as_json:
        tell_json({"found": found, "unreached": unreached})
    elif found:
        open_console().print(_listed(found))
    elif not unreached:
        where = ", ".join(regions.roles) or "any known region: no site has a role on EC2"
        typer.echo(f"headrace has no resources in {where}.")
    if unreached:
        raise typer.Exit(_EXIT_LEFT)


@app.command()
def destroy(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Ids of instances, volumes or leases."),
    ] = None,
    site: SiteFilter = None,
    all_strays: Annotated[
        bool, typer.Option("--all-strays", help="Strays in the regions of all sites.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also resources of living leases or other users.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End instances with their volumes, and delete leftover volumes.

    Without ids, only strays, as `headrace cloud list` marks them. A named resource of a living
    lease or of another user stays unless --force is given: better end a living lease by
    `headrace lease close`. The exit code is 1 if a resource stays.

    Examples:
        headrace cloud destroy --all-strays

        headrace cloud destroy --site aws --yes

        headrace cloud destroy i-0123456789abcdef0 digits-20260102-030405-0a1b2c3d-gpu-1
    """
    if all_strays if names else not (site or all_strays):
        raise UserError(
            "Give either ids, or all strays",
            "`headrace cloud list` shows the ids; `--site S` or `--all-strays` means all strays.",
        )
    regions = known_regions(site)
    found, unreached = _find(regions)
    chosen = _named(found, names) if names else [each for each in found if each.stray]
    ended = [each for each in chosen if force or not _why_spared(each)]
    for each in chosen:
        if each not in ended:
            typer.echo(f"kept {each.id}: {_why_spared(each)}")
    if not ended:
        typer.echo("Nothing to end.")
    is_done = not ended or _end(regions, ended, asks=not yes)
    if unreached or not is_done or len(ended) < len(chosen):
        raise typer.Exit(_EXIT_LEFT)


def _find(regions: Ec2Regions) -> tuple[list[Stray], list[str]]:
    with open_console(stderr=True).status(f"Searching {', '.join(regions.roles)} …"):
        found, unreached = strays.find(regions)
    for why in unreached:
        typer.echo(f"not searched: {why}", err=True)
    return found, unreached


def _named(found: Sequence[Stray], names: Sequence[str]) -> list[Stray]:
    known = {part for each in found for part in (each.id, each.lease_id)} - {""}
    for name in names:
        if name not in known:
            raise UnknownNameError(f"headrace has no '{name}' in EC2", nearest(name, known))
    return [each for each in found if {each.id, each.lease_id} & set(names)]


def _why_spared(each: Stray) -> str:
    if each.stray:
        return ""
    if each.lease == "alive":
        return f"its lease lives; `headrace lease close {each.lease_id}`, or add --force"
    if each.lease == "unknown" and not each.is_own:
        return f"it was started by {each.owner or 'another user'}; add --force"
    return ""


def _end(regions: Ec2Regions, ended: Sequence[Stray], *, asks: bool) -> bool:
    console = open_console()
    if asks:
        console.print(_listed(ended))
        if not typer.confirm(f"End {'this' if len(ended) == 1 else f'these {len(ended)}'}?"):
            typer.echo("Nothing was ended.")
            return False
    with open_console(stderr=True).status(f"Ending {len(ended)} …"):
        return strays.end(regions, ended, console.print)


def _listed(found: Sequence[Stray]) -> Listing:
    titles = ("id", "type", "where", "state", "lease", "lease is", "owner", "age", "ends in")
    labels = ("lease", "lease is", "owner", "stray")
    listed = Listing(*titles, "stray", figures=("age", "ends in"), labels=labels)
    now = time.time()
    for each in found:
        left_s = None if each.ends_at is None else each.ends_at - now
        listed.add(
            each.id,
            f"{each.type} (spot)" if each.market == "spot" else each.type,
            each.zone,
            each.state,
            each.lease_id,
            Text(each.lease, style=_LEASE_STYLES[each.lease]),
            each.owner,
            duration(None if each.since is None else now - each.since),
            duration(left_s) if left_s is None or left_s >= 0 else "over",
            Text(each.stray, style="red"),
        )
    return listed
