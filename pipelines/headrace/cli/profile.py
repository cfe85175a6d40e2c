"""The command profile: what the steps of a training that is under way spend their time on."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.arguments import RunArgument
from headrace.cli.console import JsonOption, amount, open_console, plain_table, tell_json
from headrace.cli.runs import known_run
from headrace.errors import UserError
from headrace.execution.profiles import MOST_STEPS, Wish, profile_run
from headrace.runs.runs import open_run
from headrace.steps.profile import Operator, RankProfile

_SHOWN = 15
_MOST_RANK = 99_999


def profile(
    run_id: RunArgument = None,
    steps: Annotated[
        int, typer.Option(min=1, max=MOST_STEPS, help="Optimizer steps to record.")
    ] = 5,
    ranks: Annotated[str, typer.Option(help="Ranks, as in 0,3,8-11.")] = "0",
    memory: Annotated[
        bool, typer.Option("--memory", help="Also record what operators allocate.")
    ] = False,
    lines: Annotated[
        list[str] | None,
        typer.Option(help="Time each line of module:function; may be given several times."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what steps of a training under way spend their time on.

    The ranks begin within some seconds, between two steps, and go on afterwards as if nothing had
    been; they are slower while they record and write. The trace opens in <https://ui.perfetto.dev>.
    `--lines` needs line_profiler where the ranks run; without a run, the newest is taken.

    Examples:
        headrace profile

        headrace profile digits-20260102-030405-0a1b2c3d --steps 10 --ranks 0-3 --memory

        headrace profile RUN --lines my_model:MyModel.training_step --json
    """
    run = open_run(known_run(run_id))
    wish = Wish(num_steps=steps, ranks=numbers(ranks), memory=memory, lines=tuple(lines or ()))
    console = open_console(stderr=as_json)
    with console.status("Asking the ranks …") as shown:
        found = profile_run(
            run, wish, lambda first: shown.update(f"Recording begins after step {first} …")
        )
    if as_json:
        tell_json(found)
        return
    for each in found:
        _print(each, console)


def numbers(text: str) -> tuple[int, ...]:
    """Numbers of a list such as `0,3,8-11`, in order.

    Raises:
        UserError: It is no such list.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise UserError(f"'{text}' is no list of ranks", "Write them as in --ranks 0,3,8-11.")
        found.update(range(int(first), min(int(last or first), _MOST_RANK) + 1))
    return tuple(sorted(found))


def _print(told: RankProfile, console: Console) -> None:
    each_ms = told.seconds / told.num_steps * 1e3
    console.print(
        f"rank {told.rank} on {told.node}: {told.num_steps} steps after step {told.step}, "
        f"{each_ms:.3g} ms each while they were recorded",
        highlight=False,
    )
    console.print(_table(told.operators[:_SHOWN], told.num_steps))
    if told.lines:
        console.print(told.lines, markup=False, highlight=False, soft_wrap=True)
    console.print(f"trace: {told.trace}", markup=False, highlight=False, soft_wrap=True)


def _table(operators: tuple[Operator, ...], num_steps: int) -> Table:
    """Each operator's own share of a step."""
    has_device = any(each.device_s for each in operators)
    has_memory = any(each.num_bytes for each in operators)
    titles = ["calls a step", "CPU ms a step"]
    titles += ["device ms a step"] if has_device else []
    titles += ["bytes a step"] if has_memory else []
    table = plain_table("operator", figures=titles)
    for each in operators:
        cells = [f"{each.calls / num_steps:g}", f"{each.cpu_s / num_steps * 1e3:.3f}"]
        cells += [f"{each.device_s / num_steps * 1e3:.3f}"] if has_device else []
        cells += [amount(each.num_bytes / num_steps)] if has_memory else []
        table.add_row(Text(each.name, overflow="fold"), *cells)
    return table
