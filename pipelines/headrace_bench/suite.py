"""The overhead of a trial: trivial trials, by a suite and by Ray Tune."""

from __future__ import annotations

import json
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
from rich.table import Table

from headrace.cli.console import JsonOption, open_console, tidy_end
from headrace.cli.watching import telling
from headrace.errors import StepError
from headrace.examples.digits import export_digits
from headrace.suites.records import ENTRY, Ended, Started
from headrace_bench import machine

_CODE = "def square(x):\n    return {'loss': float(x) ** 2}\n"

HEADRACE = (sys.executable, "-c", "from headrace.cli.app import main; main()")

_RAY = """
import json, sys, time
import ray
from ray import tune
trials, workers, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
began = time.perf_counter()
tune.Tuner(
    lambda config: {"loss": float(config["x"]) ** 2},
    param_space={"x": tune.grid_search(list(range(trials)))},
    run_config=tune.RunConfig(storage_path=folder, verbose=0),
).fit()
print(json.dumps({"seconds": time.perf_counter() - began, "version": ray.__version__}))
"""


def suite(
    trials: Annotated[int, typer.Option(min=2, help="Trivial trials.")] = 200,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers with one trial at a time each; default: one per core."),
    ] = None,
    ray_python: Annotated[
        Path | None,
        typer.Option("--peers", help="A Python with ray[tune], to run the same trials."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure seconds per trial without work: from the first start to the last end.

    The start of the lease, or of Ray, is not counted.

    Examples:
        headrace bench suite

        headrace bench suite --trials 1000 --peers ~/ray/bin/python
    """
    load, workers = machine.load(), workers or machine.num_cores()
    seconds: dict[str, float] = {}
    versions: dict[str, str] = {}
    with made_home() as folder, tidy_end(), telling(open_console(stderr=True)) as tick:
        if ray_python is not None:
            _by(ray_python, Path(folder), "import ray.tune")
        tick("headrace")
        seconds["headrace"] = sweep_s(Path(folder), trials, workers) / trials
        if ray_python is not None:
            tick("Ray Tune")
            took_s, versions["ray"] = _ray(ray_python, Path(folder), trials, workers)
            seconds["Ray Tune"] = took_s / trials
    host = machine.machine()
    if as_json:
        shown = {"trials": trials, "workers": workers, "seconds_per_trial": seconds, "load": load}
        typer.echo(json.dumps({**shown, **versions, "machine": host.model_dump()}, indent=1))
        return
    table = Table("", title=f"{trials} trials on {workers} workers", title_justify="left")
    table.add_column("s a trial", justify="right")
    table.add_column("of headrace", justify="right")
    for name, each_s in seconds.items():
        table.add_row(name, f"{each_s:.3f}", f"{each_s / seconds['headrace']:.2f}")
    open_console().print(table)
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
    export_digits(home / "examples" / "digits")
    for folder in ("recipes", "sites", "code"):
        (home / folder).mkdir()
    (home / "code" / "trivial.py").write_text(code)
    recipe = {
        "code": [str(home / "code")],
        "dataset": {"name": "digits", "source": str(home / "examples" / "digits"),
                    "labels": "folders", "splits": {"train": 0.9, "val": 0.1}},
        "train": {"function": {"_target_": "trivial.square", "x": 0}},
        "evaluate": None,
        "suite": dict(suite),
    }  # fmt: skip
    site = {
        "folder": str(home),
        "roles": {
            "cpu": {"backend": "local", "kind": "pool", "nodes": 1},
            "gpu": {"backend": "local", "kind": "gang", "nodes": workers},
        },
        "tiers": [{"name": "disk", "folder": str(home / "cache")}],
    }
    (home / "recipes" / "trivial.yaml").write_text(yaml.safe_dump(recipe))
    (home / "sites" / "bench.yaml").write_text(yaml.safe_dump(site))
    words = ("sweep", "trivial", f"train.function.x=range(0,{trials})", "--site", "bench")
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


def _ray(python: Path, folder: Path, trials: int, workers: int) -> tuple[float, str]:
    """Return the seconds that Ray takes, and its version."""
    answer = json.loads(_by(python, folder, _RAY, str(trials), str(workers), str(folder / "ray")))
    return float(answer["seconds"]), str(answer["version"])


def _by(python: Path, folder: Path, *code: str) -> str:
    program = str(python.expanduser().absolute())  # unresolved: a link in a venv
    hint = "A peer needs: pip install 'ray[tune]', in a separate Python."
    return last_line(program, [program, "-c", *code], folder, hint=hint)


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
