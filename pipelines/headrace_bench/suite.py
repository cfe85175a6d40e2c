"""The overhead of a trial: trivial trials of a suite."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer
import yaml

from headrace.cli.console import JsonOption, open_console, tell_json, tidy_end
from headrace.cli.watching import telling
from headrace.errors import StepError
from headrace.suites.records import ENTRY, Ended, Started
from headrace_bench import machine

_CODE = "def square(x):\n    return {'loss': float(x) ** 2}\n"

HEADRACE = (sys.executable, "-c", "from headrace.cli.app import main; main()")


def suite(
    trials: Annotated[int, typer.Option(min=2, help="Trivial trials.")] = 200,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers with one trial at a time each; default: one per core."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure seconds per trial without work: from the first start to the last end.

    The start of the lease is not counted.

    Examples:
        headrace bench suite
        headrace bench suite --trials 1000 --workers 2
    """
    load, workers = machine.load(), workers or machine.num_cores()
    with made_home() as folder, tidy_end(), telling(open_console(stderr=True)) as tick:
        tick("trials")
        each_s = sweep_s(Path(folder), trials, workers) / trials
    host = machine.machine()
    if as_json:
        shown = {"trials": trials, "workers": workers, "seconds_per_trial": each_s, "load": load}
        tell_json({**shown, "machine": host})
        return
    typer.echo(f"{each_s:.3f} s a trial: {trials} trials on {workers} workers")
    typer.echo(f"{host.cpu}, {host.num_cores} cores; load {load:.2f} before")


def sweep_s(
    home: Path,
    trials: int,
    workers: int,
    suite: Mapping[str, int] = MappingProxyType({"trials_per_node": 1}),
    code: str = _CODE,
) -> float:
    """Return the seconds from the first start of a trial to the last end.

    `code` defines the function `square(x)`; `suite` is that of the recipe.
    """
    recipe = {
        "train": {"function": {"_target_": "trivial.square", "x": 0}},
        "evaluate": None,
        "suite": dict(suite),
    }
    (home / "trivial.py").write_text(code)
    (home / "trivial.yaml").write_text(yaml.safe_dump(recipe))
    (home / "sites").mkdir()
    (home / "sites" / "laptop.yaml").write_text(f"roles: {{gpu: {{nodes: {workers}}}}}\n")
    words = ("sweep", "trivial.yaml", f"train.function.x=range(0,{trials})")
    last_line("headrace sweep", [*HEADRACE, *words, "--json"], home)
    (journal,) = home.glob("runs/*/trials.jsonl")
    entries = [ENTRY.validate_json(line) for line in journal.read_bytes().splitlines()]
    ends = [each.at for each in entries if isinstance(each, Ended) and each.is_final]
    if len(ends) != trials:
        raise StepError(f"{len(ends)} of {trials} trials have ended")
    return max(ends) - min(each.at for each in entries if isinstance(each, Started))


def made_home() -> tempfile.TemporaryDirectory[str]:
    """Return a home for commands, which is removed at the end of a block."""
    return tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True)


def last_line(
    name: str, command: Sequence[str], home: Path, folder: Path | None = None, hint: str = ""
) -> str:
    """Return the last line of a command's output, with its own home, in a folder (default: home).

    Raises:
        StepError: The command fails; the message has its `name`.
    """
    env = {**os.environ, "HEADRACE_HOME": str(home)}
    env.pop("HEADRACE_LEDGER", None)
    done = subprocess.run(
        command, cwd=folder or home, env=env, check=False, capture_output=True, text=True
    )
    if done.returncode:
        why = done.stderr[-2000:].strip().removeprefix("error: ")
        raise StepError(f"{name} failed: {why}", hint)
    return next(reversed(done.stdout.strip().splitlines()), "")
