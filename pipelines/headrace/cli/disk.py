"""`headrace disk` and `headrace clean`: what fills the disk, and its removal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.filesize import decimal

from headrace.cleanup.clean import carry_out, make_plan, retention_plan
from headrace.cleanup.items import Item, measure
from headrace.cli import arguments
from headrace.cli.console import JsonOption, tell, tell_json
from headrace.cli.listing import ListColumn, tell_list
from headrace.errors import UnknownNameError, UserError
from headrace.ledger.database import grouped
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import RunFilter
from headrace.recipe.load import parse
from headrace.recipe.site import RetentionRule
from headrace.runs.audit import Actor
from headrace.runs.parts import whole

_MOST, _MOST_NAMED = 10, 3
_SIZE = ListColumn("size", lambda item: decimal(item.num_bytes), is_figure=True)
_COLUMNS = (
    ListColumn("kind", lambda item: item.kind),
    _SIZE,
    ListColumn("why", lambda item: item.why, is_optional=True),
    ListColumn("stays", lambda item: item.stays, is_label=True, is_optional=True),
    ListColumn("name", lambda item: item.name),
)


def disk(as_json: JsonOption = False) -> None:
    """Show what fills the disk: runs, datasets, caches, Airflow.

    Sizes of ended runs are measured once, at their end; only what may change is measured now. Bytes
    are those on disk: a file with two names counts once, the holes of a sparse file not at all.
    The ten largest items follow; `--json` has all.

    Examples:
        headrace disk
        headrace disk --json
    """
    items = measure()
    if as_json:
        tell_json(items)
        return
    size, number = Counter[str](), Counter(item.kind for item in items)
    for item in items:
        size[item.kind] += item.num_bytes
    kinds = [Item(kind=each, name=f"{number[each]:,}", num_bytes=size[each]) for each in size]
    kinds.append(Item(kind="total", name=f"{len(items):,}", num_bytes=sum(size.values())))
    figures = (_COLUMNS[0], ListColumn("number", lambda item: item.name, is_figure=True), _SIZE)
    tell_list(kinds, figures, "", as_json=False)
    largest = sorted(items, key=lambda item: (-item.num_bytes, item.name))[:_MOST]
    tell_list(largest, _COLUMNS, "", as_json=False)


def clean(  # noqa: PLR0913  options of a command
    context: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Only these.", autocompletion=arguments.runs),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only what ended or was last used before that: 30d, 12h.")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(min=0, help="Newest runs of each recipe that stay.")
    ] = None,
    keep_best: Annotated[
        list[str] | None, typer.Option(help="METRIC[:min|max]: each recipe's best run stays.")
    ] = None,
    keep_tags: Annotated[
        list[str] | None, typer.Option("--keep-tag", help="Runs with this tag stay.")
    ] = None,
    unreferenced: Annotated[
        bool | None, typer.Option("--unreferenced", help="Also datasets that no run refers to.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old files; the plan is shown first.

    Never removed: what a run that has not ended uses, runs with a star or the tag `keep`, what
    another run refers to, runs that `headrace resume` can continue (unless they are named), and
    files of other users. Of a removed run the row, metrics, cost, record and copy of the code stay.
    A removed run that is named again is left out of lists. Without options, the `retention` of each
    site decides.

    Examples:
        headrace clean --older-than 30d --keep-last 5 --keep-best accuracy
        headrace clean digits-20260102-030405-0a1b2c3d
    """
    chosen = {key: context.params[key] for key in RetentionRule.model_fields}
    given = {key: value for key, value in chosen.items() if value not in (None, ())}
    rule = parse(RetentionRule, given, "headrace clean")
    if runs and given:
        what = f"Runs are named, and {', '.join(sorted(given))} is given"
        raise UserError(what, "Name runs, or select them by options.")
    _check_tags(rule.keep_tags)
    named = [whole(run_id, "clean") for run_id in runs or ()]
    plan = make_plan(rule, named=named) if given or named else retention_plan()
    going = [item for item in plan if not item.stays]
    if not as_json:
        tell_list(going, _COLUMNS, "Nothing to remove.", as_json=False)
        tell(f"{len(going):,} items, {decimal(sum(item.num_bytes for item in going))}")
        _tell_staying(item for item in plan if item.stays)
    elif not yes:
        tell_json(plan)
    if not going or not (yes or _agreed()):
        return
    done = [*carry_out(plan, Actor.here())]
    left = [item for item in done if item.stays]
    tell_list(done if as_json else left, _COLUMNS, "All of it is removed.", as_json=as_json)
    if left:
        raise typer.Exit(1)


def _tell_staying(items: Iterable[Item]) -> None:
    """Print what stays by the reasons, the most frequent first."""
    reasons = grouped((item.stays, item.name) for item in items)
    ordered = sorted(reasons.items(), key=lambda each: -len(each[1]))
    for why, names in ordered[:_MOST]:
        more = f", and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
        tell(f"Stays: {', '.join(names[:_MOST_NAMED])}{more}: {why}")
    if len(ordered) > _MOST:
        tell(f"Stays for {len(ordered) - _MOST:,} further reasons: --json has them.")


def _check_tags(tags: Iterable[str]) -> None:
    """Raise if no run has a tag: a misspelt one would keep nothing."""
    for tag in tags:
        wanted = parse(RunFilter, {"limit": 1, "kind": ("all",), "tag": (tag,)}, "--keep-tag")
        if not open_ledger().find_runs(wanted):
            raise UnknownNameError(f"No run has the tag '{tag}'", "See tags: headrace runs")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        what = "Nothing is removed: standard input is not a terminal"
        raise UserError(what, "Remove what the plan lists by --yes.")
    return typer.confirm("Remove all of this?", default=False)
