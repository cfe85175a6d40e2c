"""`headrace disk` and `headrace clean`: what fills the disk, and its removal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.filesize import decimal

from headrace.cleanup.clean import Cleaned, carry_out, forget
from headrace.cleanup.disk_use import DiskUse, disk_use
from headrace.cleanup.plan import CleanItem, CleanPlan, make_plan
from headrace.cli import arguments
from headrace.cli.console import JsonOption, open_console, tell, tell_json
from headrace.cli.listing import ListColumn, Listing
from headrace.errors import UserError
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import load_site, parse
from headrace.recipe.retention import KINDS, RetentionRule
from headrace.runs.audit import Actor

_MOST = 10
_HINT = "Show the plan: headrace clean --dry-run. Without a terminal, remove it by --yes."
_EXIT_LEFT = 1


def disk(
    remote: Annotated[
        bool, typer.Option("--remote", help="Ask object stores: all versions count.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what fills the disk: runs, datasets, staged copies, caches, Airflow.

    Sizes of ended runs are measured once, at their end; only what may change is measured now. Bytes
    are those on disk: a file with two names counts once, the holes of a sparse file not at all.
    The list has the ten largest runs and datasets, `--json` all. Object stores are not in the sum.

    Examples:
        headrace disk
        headrace disk --remote --json
    """
    use = disk_use(remote=remote)
    tell_json(use) if as_json else _show(use)


def _show(use: DiskUse) -> None:
    console = open_console()
    listed = Listing("what", "number", "size", figures=("number", "size"))
    for row in use.rows:
        listed.add(row.what, f"{row.number:,}", decimal(row.num_bytes))
    listed.add("total", "", decimal(use.total))
    console.print(listed)
    for title, sizes in (("run", use.runs), ("dataset", use.datasets), ("in stores", use.stores)):
        if sizes:
            columns = (
                ListColumn(title, lambda each: each.name),
                ListColumn("size", lambda each: decimal(each.num_bytes), is_figure=True),
            )
            console.print()
            console.print(Listing.of(sizes[:_MOST], *columns))


_Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]...", help="Only these.", autocompletion=arguments.runs),
]
_OlderThan = Annotated[
    str | None, typer.Option(help="Only what ended or was last used before that: 30d, 12h.")
]
_KeepLast = Annotated[int | None, typer.Option(min=0, help="Newest runs of each recipe that stay.")]
_KeepBest = Annotated[
    list[str] | None, typer.Option(help="METRIC[:min|max]: each recipe's best run stays.")
]


def clean(  # noqa: PLR0913  options of a command
    runs: _Runs = None,
    older_than: _OlderThan = None,
    keep_last: _KeepLast = None,
    keep_best: _KeepBest = None,
    keep_tag: Annotated[list[str] | None, typer.Option(help="Runs with this tag stay.")] = None,
    unreferenced: Annotated[
        bool, typer.Option("--unreferenced", help="Also datasets that no run refers to.")
    ] = False,
    what: Annotated[
        str | None, typer.Option(help=f"Kinds, with commas: {','.join(KINDS)}.")
    ] = None,
    site: Annotated[str, arguments.a_site("default: all.")] = "",
    forget_run: Annotated[
        str, typer.Option("--forget", metavar="RUN", help="Leave a removed run out of lists.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old files; the plan is shown first.

    Never removed: what a run that has not ended uses, runs with a star or the tag `keep`, what
    another run refers to, checkpoints that `headrace resume` needs (unless the whole run goes), and
    files of other users. Of a removed run the row, metrics, cost, record and copy of the code stay.
    Without options, the `retention` of the site given by --site decides.

    Examples:
        headrace clean --older-than 30d --keep-last 5 --keep-best accuracy
        headrace clean --older-than 7d --what checkpoints,staged --yes
        headrace clean digits-20260102-030405-0a1b2c3d --dry-run
        headrace clean --forget digits-20260102-030405-0a1b2c3d
    """
    if forget_run:
        forget(forget_run, Actor.here())
        tell(f"{forget_run} is left out of lists; its metrics and cost are kept.")
        return
    chosen = {
        "older_than": older_than,
        "keep_last": keep_last,
        "keep_best": keep_best,
        "keep_tags": keep_tag,
        "unreferenced": unreferenced or None,
        "what": what.split(",") if what else None,
    }
    rule = _rule({key: each for key, each in chosen.items() if each is not None}, site, runs or ())
    plan = make_plan(rule, site, runs or ())
    is_over = dry_run or not plan.items
    if not as_json:
        _show_plan(plan)
    elif is_over:
        tell_json(plan)
    if is_over:
        return
    if not yes and not _agreed():
        raise typer.Exit(1)
    done = [*carry_out(plan, Actor.here())]
    tell_json(done) if as_json else _show_end(done)
    if not all(each.is_gone for each in done):
        raise typer.Exit(_EXIT_LEFT)


def _rule(chosen: dict[str, object], site: str, runs: Sequence[str]) -> RetentionRule:
    for run_id in runs:
        open_ledger().run(run_id)  # raises for an unknown one
    rule = parse(RetentionRule, chosen, "headrace clean")
    of_site = load_site(site).retention if site and not chosen and not runs else None
    return of_site or rule


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UserError("Nothing is removed: standard input is not a terminal", _HINT)
    return typer.confirm("Remove all of this?", default=False)


def _show_plan(plan: CleanPlan) -> None:
    if plan.items:
        open_console().print(Listing.of(plan.items, *_COLUMNS))
        tell(f"{len(plan.items):,} items, {decimal(plan.total)} on disk")
    else:
        tell("Nothing to remove. See `headrace clean --help` for what may go, as --older-than 30d.")
    for why, count in plan.kept.items():
        tell(f"{count:,} runs stay: {why}")


def _show_end(done: list[Cleaned]) -> None:
    for each in done:
        if not each.is_gone:
            tell(f"{each.item.name} stays: {each.why_not}")
    freed = sum(each.item.num_bytes for each in done if each.is_gone)
    tell(f"Removed {sum(each.is_gone for each in done):,} items, {decimal(freed)}.")


def _size(item: CleanItem) -> str:
    return decimal(item.num_bytes) if item.num_bytes else "?"


_COLUMNS = (
    ListColumn("what", lambda item: item.what),
    ListColumn("size", _size, is_figure=True),
    ListColumn("why", lambda item: item.why),
    ListColumn("name", lambda item: item.name),
)
