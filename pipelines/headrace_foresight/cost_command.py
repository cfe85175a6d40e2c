"""The command cost: what was spent, by purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from headrace.cli import arguments
from headrace.cli.console import (
    JsonOption,
    as_csv_text,
    as_json_text,
    duration,
    hundredths,
    open_console,
    tell,
)
from headrace.cli.listing import Listing
from headrace.errors import LedgerError, StepError, UserError, nearest
from headrace.files.atomic import is_there
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import first_day
from headrace.ledger.usage_records import UsageSum
from headrace.ledger.usage_rows import By
from headrace.recipe.site import SitePrices
from headrace.recipe.teams import known_sites, teams_of
from headrace.runs.costs import run_cost
from headrace.runs.refresh_usage import price_again, refresh_usage, wasted
from headrace_foresight.allowances import MEASURES, known_allowances
from headrace_foresight.bill import compare

_HOUR_S, _KWH, _GB = 3600.0, 1000.0, 1e9
_BY = (*get_args(By), "service")
_NONE = {("trial", "0"): "(no trial)"}
_HOURS = ("node_s", "gpu_s", "queue_s")
_SHARES = ("staging_s", "idle_s", "failed_s")
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "USD": ("usd", hundredths),
    "first trial after": ("start_s", duration),
    "last trial ends": ("ends_s", duration),
    "speed": ("speed", hundredths),
}
_TITLES = ("attempts", "hours", "GPU h", "queue h", "USD", "staging", "idle", "failed", "kWh")


def cost(  # noqa: PLR0913  options of a command
    run: Annotated[
        str,
        typer.Argument(
            help="Id of a run or suite; default: all runs.", autocompletion=arguments.runs
        ),
    ] = "",
    by: Annotated[str, typer.Option(help=f"Group rows by: {', '.join(_BY)}.")] = "",
    since: Annotated[str, typer.Option(help="First day: 2026-11-01, 2026-11, or 30d.")] = "",
    user: Annotated[str, typer.Option(help="Only requests of this user.")] = "",
    site: Annotated[
        str, typer.Option(help="Only work on this site.", autocompletion=arguments.sites)
    ] = "",
    refresh: Annotated[bool, typer.Option("--refresh", help="Query unknown prices again.")] = False,
    correct: Annotated[
        bool, typer.Option("--correct", help="Price all machines again, by the sites of today.")
    ] = False,
    bill: Annotated[
        Path | None, typer.Option(help="Compare with this AWS Cost and Usage Report, by service.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows of the table, the most expensive.")] = 40,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV for spreadsheets.")] = False,
) -> None:
    """Show what machines took: hours, money, energy, what was wasted.

    Failed attempts and idle machines count; the wait in a queue costs nothing. See --by for rows.

    Examples:
        headrace cost

        headrace cost --by user --since 30d

        headrace cost digits-20260102-030405-0a1b2c3d --by trial --csv

        headrace cost --bill november.csv.gz --since 2026-11
    """
    by = by or ("kind" if run else "month")
    if by not in _BY:
        raise UserError(f"--by '{by}' is not known", nearest(by, _BY))
    if by == "trial" and not run:
        raise UserError("--by trial needs one suite", "Name it: headrace cost RUN --by trial.")
    if bill is not None and as_csv:
        raise UserError("--bill has no table for --csv", "Write --json, or leave --csv out.")
    if refresh or correct:
        count = price_again(run or None, anew=correct)
        typer.echo(f"Machines of {count} leases have another price now.", err=True)
    try:
        refresh_usage(run or None)
    except LedgerError as error:  # entered rows are shown nonetheless
        typer.echo(f"Without the last minutes: {error.what}", err=True)
    names = {"run_id": run or None, "owner": user or None, "site_name": site or None}
    chosen: dict[str, Any] = names | {"since": first_day(since)}
    if bill is not None:
        compare(bill, chosen, as_json=as_json)
    elif as_json or as_csv:
        rows = _for_programs(by, chosen)
        typer.echo(as_json_text(rows) if as_json else as_csv_text(rows, by), nl=as_json)
    else:
        _show(by, chosen, limit)


def _show(by: str, chosen: dict[str, Any], limit: int) -> None:
    """Print the table, what it leaves open, and this month's allowances beside costs of all."""
    ledger, prices, run = open_ledger(), _prices(), chosen["run_id"]
    sums = ledger.usage_sums(_grouping(by), limit=limit + 1, prices=prices, **chosen)
    if not sums:
        typer.echo("No costs are recorded.")
        return
    (total,) = ledger.usage_sums(None, prices=prices, **chosen)
    if by == "service":
        open_console().print(_of_services(total))
    else:
        open_console().print(_listed(by, sums[:limit], total, is_whole=len(sums) <= limit))
    places = ledger.usage_sums("place", **chosen) if total.unpriced else ()
    roles = [each.name for each in places if each.unpriced]
    used = run_cost(run) if run else None
    for note in _notes(total, roles):
        tell(note)
    for line in used.lines if used else ():
        tell(f"Price of {f'{line.kind} {line.market}'.strip()}: {line.price}.")
    if run:
        with suppress(StepError):  # its folder may be gone
            _tell_of_sites(run)
    else:
        _tell_allowances(chosen["site_name"] or "", chosen["owner"] or "")


def _tell_of_sites(run_id: str) -> None:
    """Show what a suite over several sites expected of each, and what came."""
    if not is_there(RunFolder(Path(open_ledger().run(run_id).folder)).summary):
        return
    from headrace.runs.runs import open_run  # other costs need no recipe
    from headrace_foresight.site_outcomes import site_outcomes

    run = open_run(run_id)
    listed = Listing("site: expected, came", *_FIGURES, figures=tuple(_FIGURES))
    for each in (found := site_outcomes(run.folder, run.recipe)):
        cells = []
        for name, shown in _FIGURES.values():
            pair = getattr(each, name)
            cells += [f"{_figure(pair.expected, shown)}, {_figure(pair.came, shown)}"]
        listed.add(each.site, *cells)
    if found:
        open_console().print("", listed)


def _figure(value: float | None, shown: Callable[[float], str]) -> str:
    return "?" if value is None else shown(value)


def _prices() -> dict[str, SitePrices]:
    """Return what sites charge for storage and transfer today."""
    return {name: site.prices for name, site in known_sites().items()}


def _tell_allowances(site: str, user: str) -> None:
    """Show the allowances of sites this month, and how much is spent."""
    listed = Listing("this month", "taken", "of", "by", figures=("taken", "of"))
    known = [
        each
        for each in known_allowances(frozenset({site}) if site else None)
        if not user or each.whose == user or each.whose in teams_of(user)
    ]
    for each in known:
        spent, most = map(MEASURES[each.unit].shown, (each.spent, each.most))
        listed.add(f"{each.site} {each.whose}", spent, most, each.key)
    if known:
        open_console().print("", listed)


def _listed(by: str, sums: Sequence[UsageSum], total: UsageSum, *, is_whole: bool) -> Listing:
    listed = Listing(by, *_TITLES, figures=_TITLES)
    for each in sums:
        listed.add(_NONE.get((by, each.name), each.name), *_cells(each))
    if not is_whole:
        listed.add("… and more: --limit, --csv", *("" for _ in _TITLES))
    listed.add("all", *_cells(total))
    return listed


def _grouping(by: str) -> By | None:
    return None if by == "service" else cast("By", by)


def _services(total: UsageSum) -> list[dict[str, Any]]:
    """Return amounts and US dollars by service; storage is for a month."""
    return [
        {"service": "machines", "usd": total.usd, "amount": total.node_s / _HOUR_S, "unit": "h"},
        {"service": "storage", "usd": total.usd_storage, "amount": total.stored_bytes / _GB,
         "unit": "GB for a month"},
        {"service": "transfer", "usd": total.usd_transfer, "amount": total.fetched_bytes / _GB,
         "unit": "GB"},
    ]  # fmt: skip


def _of_services(total: UsageSum) -> Listing:
    listed = Listing("service", "amount", "USD", figures=("amount", "USD"))
    for each in _services(total):
        usd = "?" if each["usd"] is None else hundredths(each["usd"])
        listed.add(each["service"], f"{each['amount']:,.3g} {each['unit']}", usd)
    return listed


def _cells(each: UsageSum) -> list[str]:
    usd = "?" if each.usd is None else hundredths(each.usd)
    usd += "+?" if each.unpriced and each.usd is not None else ""
    hours = [hundredths(getattr(each, name) / _HOUR_S) for name in _HOURS]
    shares = [
        f"{getattr(each, name) / each.node_s:.0%}" if each.node_s > 0 else "" for name in _SHARES
    ]
    kwh = "—" if each.energy_wh is None else hundredths(each.energy_wh / _KWH)
    return [str(each.attempts), *hours, usd, *shares, kwh]


def _notes(total: UsageSum, roles: Sequence[str]) -> Iterator[str]:
    if (share := wasted(total)) is not None:
        yield (
            f"{share:.0%} of the machines' hours were wasted: idle (boot, between steps, no trial),"
            " or of attempts that did not succeed (each as a whole)."
        )
    if total.energy_wh is not None:
        measured, hours = total.measured_s / _HOUR_S, total.node_s / _HOUR_S
        yield f"kWh were measured in {hundredths(measured)} of {hundredths(hours)} machine hours."
    for usd, amount, what in (
        (total.usd_storage, total.stored_bytes, "a month for {:,.3g} GB of packed datasets"),
        (total.usd_transfer, total.fetched_bytes, "for {:,.3g} GB read from object stores"),
    ):
        if usd is not None:
            yield f"Besides machines: {hundredths(usd)} USD {what.format(amount / _GB)}."
    if roles:
        yield (
            f"No price is known of role {', '.join(roles)}: its hours are counted without a cost. "
            "Write `price` there in the site, or `ec2.prices`."
        )


def _for_programs(by: str, chosen: dict[str, Any]) -> list[dict[str, Any]]:
    sums = open_ledger().usage_sums(_grouping(by), prices=_prices(), **chosen)
    if by == "service":
        return [each for total in sums for each in _services(total)]
    figures = UsageSum._fields[1:]
    return [
        {by: each.name, **dict(zip(figures, each[1:], strict=True)), "wasted": wasted(each)}
        for each in sums
    ]
