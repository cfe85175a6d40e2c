"""What a trial costs beside its own work: trivial ones, by a suite and by Ray Tune."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
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

HEADRACE = "from headrace.cli.app import main; main()"
"""Python's way to the command."""

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
    workers: Annotated[int, typer.Option(min=1, help="Workers, of a trial at a time each.")] = 2,
    ray_python: Annotated[
        Path | None,
        typer.Option("--peers", help="A Python that has ray[tune], which then runs the same."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Seconds a trial that does nothing: from the first start to the last end, by their number.

    Opening the lease, or starting Ray, is not counted.

    Examples:
        headrace bench suite

        headrace bench suite --trials 1000 --peers ~/ray/bin/python
    """
    load = machine.load()
    seconds: dict[str, float] = {}
    versions: dict[str, str] = {}
    with _folder() as folder, tidy_end(), telling(open_console(stderr=True)) as tick:
        if ray_python is not None:
            _run([_program(ray_python), "-c", "import ray.tune"], Path(folder))
        tick("headrace")
        seconds["headrace"] = _headrace(Path(folder), trials, workers) / trials
        if ray_python is not None:
            tick("Ray Tune")
            took_s, versions["ray"] = _ray(ray_python, Path(folder), trials, workers)
            seconds["Ray Tune"] = took_s / trials
    host = machine.machine()
    if as_json:
        told = {"trials": trials, "workers": workers, "seconds_per_trial": seconds, "load": load}
        typer.echo(json.dumps({**told, **versions, "machine": host.model_dump()}, indent=1))
        return
    table = Table("", title=f"{trials} trials on {workers} workers", title_justify="left")
    table.add_column("s a trial", justify="right")
    table.add_column("of headrace", justify="right")
    for name, each_s in seconds.items():
        table.add_row(name, f"{each_s:.3f}", f"{each_s / seconds['headrace']:.2f}")
    open_console().print(table)
    typer.echo(f"{host.cpu}, {host.num_cores} cores; load {load:.2f} before")


def _headrace(home: Path, trials: int, workers: int) -> float:
    """Seconds from the first start of a trial to the last end."""
    export_digits(home / "examples" / "digits")
    for folder in ("recipes", "sites", "code"):
        (home / folder).mkdir()
    (home / "code" / "trivial.py").write_text(_CODE)
    recipe = {
        "code": [str(home / "code")],
        "dataset": {"name": "digits", "source": str(home / "examples" / "digits"),
                    "labels": "folders", "splits": {"train": 0.9, "val": 0.1}},
        "train": {"function": {"_target_": "trivial.square", "x": 0}},
        "evaluate": None,
        "suite": {"trials_per_node": 1},
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
    _run([sys.executable, "-c", HEADRACE, *words, "--json"], home)
    (journal,) = home.glob("runs/*/trials.jsonl")
    entries = [ENTRY.validate_json(line) for line in journal.read_bytes().splitlines()]
    ends = [each.at for each in entries if isinstance(each, Ended) and each.is_final]
    if len(ends) != trials:
        raise StepError(f"{len(ends)} of {trials} trials have ended")
    return max(ends) - min(each.at for each in entries if isinstance(each, Started))


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True)


def _ray(python: Path, folder: Path, trials: int, workers: int) -> tuple[float, str]:
    """Seconds that Ray takes, and its version."""
    command = [_program(python), "-c", _RAY, str(trials), str(workers)]
    answer = json.loads(_run([*command, str(folder / "ray")], folder))
    return float(answer["seconds"]), str(answer["version"])


def _program(python: Path) -> str:
    # not resolved: the link in a virtual environment is what makes it one
    return str(python.expanduser().absolute())


def environment(home: Path) -> dict[str, str]:
    """That of a command in a home of its own."""
    env = {**os.environ, "HEADRACE_HOME": str(home)}
    env.pop("HEADRACE_LEDGER", None)
    return env


def _run(command: list[str], home: Path) -> str:
    """The last line that a command says."""
    env = environment(home)
    done = subprocess.run(command, cwd=home, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        what = f"{command[0]} failed with {done.returncode}: {done.stderr[-2000:].strip()}"
        raise StepError(what, "A peer needs: pip install 'ray[tune]', into a Python of its own.")
    return next(reversed(done.stdout.strip().splitlines()), "")
