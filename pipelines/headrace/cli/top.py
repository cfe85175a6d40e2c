"""The command top: open leases, what runs on them, and how busy their nodes and GPUs are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.cli.console import (
    JsonOption,
    duration,
    open_console,
    output_is_gone,
    plain_table,
    tell_json,
)
from headrace.cli.words import nodes_words
from headrace.runs.in_use import LeaseInUse, leases_in_use
from headrace.steps.history import UsageRow

_REFRESH_S = 2.0


def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once; so do pipes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show open leases, and how busy their nodes and GPUs are.

    Leases are those of all sites that the ledger knows. Nodes are measured while they train, also
    by trials of suites. It is shown anew every two seconds; Ctrl-C ends it.

    Examples:
        headrace top

        headrace top --once --json
    """
    console = open_console()
    if as_json:
        tell_json(leases_in_use())
        return
    if once or not console.is_terminal:
        console.print(shown(leases_in_use()))
        return
    with Live(console=console, auto_refresh=False) as screen:
        while not output_is_gone():
            screen.update(shown(leases_in_use()), refresh=True)
            time.sleep(_REFRESH_S)


def shown(found: Sequence[LeaseInUse]) -> RenderableType:
    """Open leases, each with its nodes."""
    if not found:
        return Text("No open leases.")
    here = sum(each.lease.nodes_here for each in found)
    wanted = sum(each.lease.nodes for each in found)
    leases = f"{len(found)} open lease{'s' if len(found) > 1 else ''}"
    at = time.strftime("%H:%M:%S")
    head = Text(f"{leases}, {here} of at most {wanted} nodes are there · {at}", style="dim")
    return Group(head, *(part for each in found for part in _parts(each)))


def _parts(each: LeaseInUse) -> Iterator[RenderableType]:
    lease = each.lease
    idle = "" if lease.idle_s is None else f"idle {duration(lease.idle_s)}"
    told = (
        *(f"{lease.role} on {each.site}", lease.state.value, f"nodes {nodes_words(lease)}"),
        *(", ".join(each.running) or idle, f"age {duration(lease.age_s)}"),
        *(lease.waits_for.partition("\n")[0], each.damage),
    )
    yield Text(f"\n{lease.lease_id}", style="bold", overflow="fold")
    yield Padding(Text(" · ".join(filter(None, told)), overflow="fold"), (0, 0, 0, 2), expand=False)
    if each.nodes:
        yield Padding(_nodes(each.nodes), (0, 0, 0, 2), expand=False)


def _nodes(rows: Sequence[UsageRow]) -> Table:
    has_gpus = any(row.gpu is not None for row in rows)
    more = ("GPUs", "their memory", "power") if has_gpus else ()
    table = plain_table("node", figures=("CPU", "memory", *more))
    table.columns[0].overflow = "fold"
    for row in rows:
        of_gpus = (_share(row.gpu), _share(row.gpu_memory), _watts(row.gpu_power_w))
        table.add_row(row.node, _share(row.cpu), _share(row.memory), *of_gpus[: len(more)])
    return table


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _watts(power_w: float | None) -> str:
    return "" if power_w is None else f"{power_w:.0f} W"
