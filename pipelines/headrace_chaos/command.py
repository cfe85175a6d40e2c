"""`headrace chaos`: disturbs real runs at random, and checks that nothing of it shows."""

from __future__ import annotations

import shlex
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.console import open_console, tidy_end
from headrace.cli.watching import telling

if TYPE_CHECKING:
    from headrace_chaos.campaign import Campaign
    from headrace_chaos.outcome import Outcome


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Admin")(chaos)


def chaos(
    runs: Annotated[int, typer.Option(min=1, help="Runs to disturb.")] = 20,
    seed: Annotated[int, typer.Option(help="Draws process, phase, moment and signal.")] = 0,
    trial: Annotated[
        int | None, typer.Option(min=0, help="Only the trial with this number, again.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 1,
    limit: Annotated[float, typer.Option(help="Seconds after which a run counts as hung.")] = 600.0,
    folder: Annotated[
        Path | None, typer.Option(help="Folder to work in; default is a temporary one.")
    ] = None,
) -> None:
    """Kill processes of real runs here: results must not change.

    Each run trains on the digits, a random process of it is killed (-9) or halted once, and it is
    resumed if need be. Its dataset, weights and figures are compared with those of a run that
    nobody disturbs, and nothing may be left of it. The exit code is 1 when anything differs; what
    such runs left stays in the folder, with `outcomes.jsonl`, which tells of all of them.

    Examples:
        headrace chaos --runs 20 --seed 7 --jobs 2

        headrace chaos --seed 7 --trial 13
    """
    from headrace_chaos.campaign import Campaign  # numpy and others take half a second
    from headrace_chaos.ground import Ground

    work = folder.absolute() if folder else Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    numbers = range(runs) if trial is None else [trial]
    campaign = Campaign(ground=Ground(work), seed=seed, numbers=numbers, jobs=jobs, limit_s=limit)
    outcomes = sorted(_made(campaign, len(numbers)), key=lambda each: each.trial.number)
    is_well = all(each.is_well for each in outcomes)
    if is_well and folder is None:
        shutil.rmtree(work)
    _print(outcomes, open_console())
    if not is_well:
        raise typer.Exit(1)


def _made(campaign: Campaign, num_trials: int) -> list[Outcome]:
    """Make all trials, and tell of those that are not well at once."""
    console = open_console(stderr=True)
    work = campaign.ground.folder
    outcomes: list[Outcome] = []
    with tidy_end(), telling(console) as tell:
        tell("the run that nobody disturbs")
        for outcome in campaign.outcomes(campaign.reference()):
            outcomes.append(outcome)
            with (work / "outcomes.jsonl").open("a") as file:
                file.write(outcome.model_dump_json() + "\n")
            tell(_progress(outcomes, num_trials))
            if not outcome.is_well:
                _explain(outcome, work, console)
    return outcomes


def _progress(outcomes: list[Outcome], num_trials: int) -> str:
    num_bad = sum(not each.is_well for each in outcomes)
    newest = outcomes[-1].trial
    return (
        f"{len(outcomes)} of {num_trials} runs, {num_bad} not well; "
        f"last: {newest.signal} of {newest.role} in {newest.phase}"
    )


def _explain(outcome: Outcome, work: Path, console: Console) -> None:
    trial = outcome.trial
    hung = (f"hung: {outcome.hung}",) if outcome.hung else ()
    again = f"headrace chaos --seed {trial.seed} --trial {trial.number}"
    lines = (
        f"trial {trial.number}: {trial.signal} of {trial.role} in {trial.phase}",
        *(f"  wrong: {each}" for each in outcome.wrong),
        *(f"  {each}" for each in hung),
        *(f"  left: {each}" for each in outcome.left),
        f"  see {shlex.quote(str(work / f'trial-{trial.number}'))}; again: {again}",
    )
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _print(outcomes: list[Outcome], console: Console) -> None:
    from headrace_chaos.outcome import counted, tally

    hits = [each for each in outcomes if each.hit is not None]
    table = Table("phase", "process", "signal", box=None, pad_edge=False)
    for name in (*counted(hits), "median"):
        table.add_column(name, justify="right")
    for key, group in (*tally(hits).items(), (("all", "", ""), hits)):
        median_s = statistics.median([each.seconds for each in group] or [0.0])
        table.add_row(*key, *map(str, counted(group).values()), f"{median_s:.1f} s")
    console.print(table)
    if len(hits) < len(outcomes):
        missed = len(outcomes) - len(hits)
        console.print(f"{missed} runs ended before they could be disturbed.")
