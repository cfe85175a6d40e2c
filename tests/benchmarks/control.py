"""How long the control side takes with many leases, nodes and trials: pages, reaper, commands."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import ledger, paper_site
from headrace.cli.console import open_console, tidy_end
from headrace.cli.watching import telling
from headrace.errors import StepError
from headrace.execution.reap import reap
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.database import VARIABLE
from headrace.ledger.ledger import open_ledger
from headrace.runs.refresh_usage import refresh_usage
from headrace.status.cost import cost_page
from headrace.status.lease import leases_page, look
from headrace.status.run_list import runs_page
from headrace.status.run_page import run_page
from headrace.status.suite import suite_page, trials_page
from headrace_bench import machine
from headrace_bench.suite import HEADRACE

_LOST_AFTER_S = 20.0
_SUITE = "suite-0"

Questions = Iterator[tuple[str, Callable[[], object]]]


def control(
    leases: Annotated[int, typer.Option(min=1, help="Leases that are open, a run each.")] = 1000,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of each.")] = 10,
    ended: Annotated[int, typer.Option(min=0, help="Runs, a lease each, of before.")] = 10_000,
    trials: Annotated[int, typer.Option(min=1, help="Attempts at trials.")] = 1_000_000,
    url: Annotated[
        str, typer.Option(help="An empty database; by default a SQLite file that is removed.")
    ] = "",
) -> None:
    """Make a site on paper, and time what pages, reaper, triggers and commands ask of it.

    Its leases are files and rows only: nothing is asked of a batch system. Their heartbeats are
    written by a process of this machine. Of what a server asks again the second time counts, of
    commands the first.

    Examples:
        PYTHONPATH=tests python -m benchmarks.control

        … --leases 100 --trials 100000 --url postgresql://localhost/empty
    """
    seconds: dict[str, float] = {}
    with _home(url) as home, tidy_end(), telling(open_console(stderr=True)) as tick:
        began = time.perf_counter()
        tick("making the site")
        folders = _made(home, leases, nodes, ended, trials)
        made_s, load = time.perf_counter() - began, machine.load()
        with paper_site.beating(SiteFolder(home)):
            for name, ask in _questions(folders):
                tick(name)
                ask()
                seconds[name] = _timed(ask)
            for words in _commands():
                tick(words)
                seconds[words] = _timed(partial(_command, words))
    host = machine.machine(["sqlalchemy"])
    given = {"leases": leases, "nodes": leases * nodes, "ended": ended, "trials": trials}
    told = {**given, "made_s": made_s, "seconds": seconds, "machine": host.model_dump()}
    print(json.dumps({**told, "load": load}, indent=1))


@contextmanager
def _home(url: str) -> Iterator[Path]:
    """A home of its own, and a ledger, for this process and those that it starts."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        names = {"HEADRACE_HOME": folder, VARIABLE: url or f"sqlite:///{folder}/ledger.db"}
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(names)
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _made(home: Path, leases: int, nodes: int, ended: int, trials: int) -> list[LeaseFolder]:
    paper_site.make_site(home, leases, nodes)
    batch = f"data.global_batch_size={8 * nodes}"
    like = paper_site.asked("train", batch)
    suite = paper_site.asked("suite", batch, "suite.seeds=[1,2]")
    ledger.enter(open_ledger(), trials, str(suite.folder.path))
    paper_site.enter_ended(like, ended)
    return [paper_site.training(like, number) for number in range(leases)]


def _questions(folders: Sequence[LeaseFolder]) -> Questions:
    run_id = folders[-1].lease_id.removesuffix("-gpu-1")
    yield "page of runs, 200", runs_page
    yield "page of runs, 1,000", partial(runs_page, 1000)
    yield "page of runs, by a text", partial(runs_page, 200, (), "ended-0000")
    yield "page of a run", partial(run_page, run_id, can_act=True)
    yield "page of leases", partial(leases_page, can_act=True)
    yield "page of a suite", partial(suite_page, _SUITE, can_act=True)
    yield "its trials", partial(trials_page, _SUITE)
    yield "page of costs", cost_page
    yield "costs of what goes on, entered", partial(refresh_usage, older_than_s=0.0)
    yield "a pass of the reaper", lambda: reap(lambda _run: None, lambda _run, _step: False)
    yield "a look of each trigger of a step", partial(_look, folders)


def _look(folders: Sequence[LeaseFolder]) -> None:
    for folder in folders:
        look(folder, folder.step(1), _LOST_AFTER_S)


def _commands() -> Iterator[str]:
    words = ("--version", "status", "runs", f"lease list --site {paper_site.SITE}", "cost")
    for each in (*words, f"results {_SUITE}"):
        yield f"headrace {each}"


def _command(words: str) -> None:
    command = [*HEADRACE, *words.split()[1:]]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise StepError(f"{words} failed: {done.stderr[-2000:].strip()}")


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    typer.run(control)
