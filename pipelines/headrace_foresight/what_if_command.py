"""The command what-if: the same trials on other machines, before any is paid for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from headrace.cli.console import JsonOption, duration, open_console, plain_table, tell_json
from headrace.errors import UserError
from headrace.recipe.backend import ASSUMED_PER_HOUR
from headrace.runs.prediction import Interval
from headrace_foresight import what_if_options as words

if TYPE_CHECKING:
    from headrace_foresight.scenario import Scenario
    from headrace_foresight.what_if import WhatIfRow


def what_if(  # noqa: PLR0913  options of a command
    work: words.Work = None,
    overrides: words.Changes = None,
    lasting: words.Lasting = "",
    trials: words.Trials = 0,
    total: words.Total = "",
    site: words.Sites = None,
    nodes: words.NumNodes = "",
    gpus: words.Gpus = None,
    also: words.Also = "",
    policy: words.Policies = "",
    deadline: words.Deadline = "",
    budget: words.Budget = math.inf,
    spot: words.Spot = "0",
    interruptions: words.Interruptions = None,
    pack: words.Pack = "1",
    slow_down: words.SlowDown = 0.5,
    order: words.Orders = "longest",
    walltime: words.Walltimes = "",
    price: words.Usd = None,
    spot_price: words.SpotUsd = None,
    queue: words.Queue = "",
    boot: words.Boot = "",
    checkpoint: words.Checkpoint = "10min",
    restart: words.Restart = "",
    repeats: words.Repeats = 20,
    seed: words.Seed = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare what trials take on other sites, nodes, time limits.

    Each combination of the options with several values is simulated, event by event: queue, boot,
    interruptions, restarts from checkpoints, trials that share a GPU. If durations or interruptions
    are random, a figure is a mean, with half of its 80 % interval.

    Examples:
        headrace what-if durations.csv --nodes 20,60 --price 0.752 --spot 0,1 --spot-price 0.23
        headrace what-if --duration 1h2m:10d16h --trials 1386 --total 16542h --nodes 60
        headrace what-if digits --site lab --site aws --policy own-first,spread --deadline 2d
    """
    from headrace_foresight.what_if import Question, answer

    if lasting:
        forecasts, source = words.lasting_so_long(work, lasting, trials, total)
    else:
        forecasts, source = words.trials_of(work, overrides or [], trials, (site or ["laptop"])[0])
    asked = {"gpus": gpus, "usd_per_hour": price, "spot_usd_per_hour": spot_price}
    asked |= {"queue_s": words.seconds(queue), "boot_s": words.seconds(boot)}
    question = Question(
        trials=forecasts,
        places=() if policy and not site else tuple(words.places(site or [], **asked)),
        **_axes(nodes, spot, pack, order, walltime),
        interruptions_per_hour=ASSUMED_PER_HOUR if interruptions is None else interruptions,
        policies=tuple(filter(None, policy.split(","))),
        common=replace(_common(also, checkpoint, restart, deadline, budget), slow_down=slow_down),
    )
    _tell(answer(question, repeats, seed), source, sum(each.seconds for each in forecasts), as_json)


def _axes(nodes: str, spot: str, pack: str, order: str, walltime: str) -> dict[str, Any]:
    """Return the fields of a question with several values."""
    from headrace_foresight.durations import duration_of

    return {
        "nodes": tuple(words.numbers("nodes", nodes, int, 1)),
        "spots": tuple(words.numbers("spot", spot, float, 0.0)),
        "packs": tuple(words.numbers("pack", pack, int, 1)),
        "orders": tuple(order.split(",")),
        "walltimes_s": tuple(map(duration_of, walltime.split(","))) if walltime else (math.inf,),
    }


def _common(also: str, checkpoint: str, restart: str, deadline: str, budget: float) -> Scenario:
    """Return what all scenarios have in common."""
    from headrace_foresight.scenario import Scenario

    if not budget > 0:
        raise UserError(f"--budget is {budget:g}", "Write a number > 0, or leave it out: no limit.")
    return Scenario(
        nodes=tuple(words.beside(also)),
        checkpoint_s=words.seconds(checkpoint) or 600.0,
        restart_s=words.seconds(restart) or 0.0,
        deadline_s=words.seconds(deadline) or math.inf,
        budget_usd=budget,
    )


def _tell(rows: Sequence[WhatIfRow], source: str, total_s: float, as_json: bool) -> None:
    if as_json:
        tell_json(rows)
        return
    console = open_console()
    console.print(f"{source}: {_hours(total_s)} one after another")
    console.print(_table(rows))


def _table(rows: Sequence[WhatIfRow]) -> Table:
    """Return a table of scenarios, with the columns in which they differ."""
    shown = {
        "policy": [row.policy for row in rows],
        "site": [row.site * (not row.policy) for row in rows],
        "nodes": [str(row.nodes) for row in rows],
        "spot": [f"{row.spot:.0%}" for row in rows],
        "a GPU": [str(row.pack) for row in rows],
        "order": [row.order for row in rows],
        "walltime": [_hours(row.walltime_s) if row.walltime_s else "none" for row in rows],
    }
    chosen = {title: cells for title, cells in shown.items() if len(set(cells)) > 1}
    usual = "policy" if rows[0].policy else "nodes"
    chosen = chosen or {usual: shown[usual]}
    sites = [
        name
        for name in rows[0].usd_of
        if any(usd.mean for row in rows if (usd := row.usd_of[name]))
    ]
    titles = ("makespan", "cost", *sites, "node hours", "in use", "wasted")
    table = plain_table(*chosen, figures=titles)
    table.add_column("")
    for index, row in enumerate(rows):
        marks = ["fastest"] if row.is_fastest else []
        marks += ["cheapest"] if row.is_cheapest else []
        table.add_row(
            *(cells[index] for cells in chosen.values()),
            _figure(row.makespan_s, _hours),
            _usd(row.usd) + ("+?" if row.usd and None in row.usd_of.values() else ""),
            *(_usd(row.usd_of[name]) for name in sites),
            _figure(row.node_hours, "{:,.1f}".format),
            f"{row.utilisation.mean:.1%}",
            f"{abs(row.waste.mean):.1%}",
            ", ".join(marks),
        )
    return table


def _figure(figure: Interval, shown: Callable[[float], str]) -> str:
    half = figure.half
    return shown(figure.mean) + (f" ± {shown(half)}" if half > 1e-3 * abs(figure.mean) else "")


def _usd(figure: Interval | None) -> str:
    return "?" if figure is None else _figure(figure, "${:,.2f}".format)


def _hours(seconds: float) -> str:
    """Return a long time for people: `11.5 d`, `3.2 h`, else as by `duration`."""
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:,.1f} d"
    return f"{seconds / 3600:,.1f} h" if seconds >= 2 * 3600 else duration(seconds)
