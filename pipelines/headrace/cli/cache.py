"""`headrace cache`: staged datasets on this machine's tiers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.filesize import decimal

from headrace.cli.console import JsonOption, SiteOption, duration, tell, tell_json
from headrace.cli.listing import ListColumn, tell_list
from headrace.errors import UnknownNameError, UserError, nearest
from headrace.files.tiers import folder_of, measure
from headrace.recipe.load import load_site
from headrace.recipe.site import Tier
from headrace.staging import cache
from headrace.staging.cache import CachedCopy

app = typer.Typer(
    name="cache", help="Staged datasets on this machine's tiers.", no_args_is_help=True
)

_NONE = "No staged datasets on this machine."

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[COPY]...", help="Fingerprints, the first digits of one, or names."),
]


@app.command("list")
def list_copies(site: SiteOption = "laptop", as_json: JsonOption = False) -> None:
    """List staged datasets, tier by tier, the least recently used first.

    Only this machine is listed: for a node of a cluster, run it there, as with `srun`.

    Examples:
        headrace cache list
        headrace cache list --site my-site.yaml --json
    """
    tiers = load_site(site).tiers
    copies = cache.copies_of(tiers)
    rooms = [measure(tier, 0) for tier in tiers if folder_of(tier).is_dir()]
    if as_json:
        shown = ("name", "folder", "held_bytes", "budget_bytes", "usable_bytes")
        plain = [{name: getattr(room, name) for name in shown} for room in rooms]
        tell_json({"copies": copies, "tiers": plain})
        return
    tell_list(copies, _COLUMNS, _NONE, as_json=False)
    for room in rooms:
        budget = "" if room.budget_bytes is None else decimal(room.budget_bytes)
        held = f"{decimal(room.held_bytes)} held{budget and f' of a budget of {budget}'}"
        tell(f"{room.name}: {held}, room for {decimal(room.usable_bytes)} more  {room.folder}")


@app.command()
def evict(
    names: NamesArgument = None,
    every: Annotated[bool, typer.Option("--all", help="All copies that are not in use.")] = False,
    site: SiteOption = "laptop",
    as_json: JsonOption = False,
) -> None:
    """Remove staged datasets from this machine; they can be staged again.

    Without names, copies are removed that were unused for the `keep` of their tier, as each staging
    does. Copies that are in use or being staged stay: then the exit code is 1. The datasets
    themselves, on shared storage, stay.

    Examples:
        headrace cache evict
        headrace cache evict digits
        headrace cache evict 4f1c 9ab0
        headrace cache evict --all
    """
    tiers = load_site(site).tiers
    if not names and not every:
        copies = [copy for tier in tiers for copy in cache.past_keep(tier)]
    else:
        copies = _chosen(tiers, names or [], every)
    removed = [copy for copy in copies if cache.evict(copy.folder)]
    kept = [copy for copy in copies if copy not in removed]
    if as_json:
        tell_json({"evicted": removed, "kept": kept})
    else:
        for copy in removed:
            typer.echo(f"evicted {_title(copy)}: {decimal(copy.num_bytes)}")
        for copy in kept:
            typer.echo(f"kept {_title(copy)}: it is {copy.state}")
        if not copies:
            typer.echo("Nothing to evict.")
    if kept and names:
        raise typer.Exit(1)


@app.command()
def verify(
    names: NamesArgument = None, site: SiteOption = "laptop", as_json: JsonOption = False
) -> None:
    """Compare the checksums of staged datasets with their manifests; all of them by default.

    Damaged shards are removed from the copy; the next run that needs them stages them again. The
    exit code is 1 if there were any.

    Examples:
        headrace cache verify
        headrace cache verify digits --json
    """
    copies = _chosen(load_site(site).tiers, names or [], every=not names)
    found = [(copy, cache.verify(copy)) for copy in copies]
    if as_json:
        tell_json([{"copy": copy, "damaged": bad} for copy, bad in found])
    else:
        for copy, damaged in found:
            typer.echo(f"{_title(copy)}: {_verified(copy, damaged)}")
        if not found:
            typer.echo(_NONE)
    if any(damaged for _, damaged in found):
        raise typer.Exit(1)


def _chosen(tiers: Sequence[Tier], names: Sequence[str], every: bool) -> list[CachedCopy]:
    copies = cache.copies_of(tiers)
    if every and names:
        raise UserError("Names and --all cannot be combined", "Give names, or --all.")
    if every:
        return list(copies)
    chosen: list[CachedCopy] = []
    for name in names:
        found = [copy for copy in copies if copy.name == name or copy.fingerprint.startswith(name)]
        if not found:
            known = {copy.name or copy.fingerprint for copy in copies}
            raise UnknownNameError(f"No staged dataset is called '{name}'", nearest(name, known))
        chosen += [copy for copy in found if copy not in chosen]
    return chosen


def _verified(copy: CachedCopy, damaged: Sequence[str]) -> str:
    if copy.state in ("interrupted", "being staged"):
        return f"not checked, it is {copy.state}"
    if not damaged:
        return f"intact, {copy.num_shards} shards"
    return "\n  ".join((f"{len(damaged)} damaged, will be staged again:", *damaged))


def _title(copy: CachedCopy) -> str:
    return f"{copy.name or 'half a copy'} ({copy.fingerprint[:12]}) on {copy.tier}"


def _shards(copy: CachedCopy) -> str:
    left_out = f" of {copy.num_shards + copy.num_left_out}" if copy.num_left_out else ""
    return f"{copy.num_shards}{left_out}"


def _last_used(copy: CachedCopy) -> str:
    return f"{duration(time.time() - copy.last_used_at)} ago" if copy.last_used_at else "never"


_COLUMNS = (
    ListColumn("dataset", lambda copy: copy.name or "-"),
    ListColumn("tier", lambda copy: copy.tier),
    ListColumn("state", lambda copy: copy.state),
    ListColumn("splits", lambda copy: ", ".join(copy.splits)),
    ListColumn("shards", _shards, is_figure=True),
    ListColumn("size", lambda copy: decimal(copy.num_bytes), is_figure=True),
    ListColumn("last used", _last_used, is_figure=True),
    ListColumn("fingerprint", lambda copy: copy.fingerprint, is_label=True),
)
