"""What a trial without work costs: by a suite of headrace, and by Ray Tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace_bench.machine import load, machine, num_cores
from headrace_bench.suite import last_line, made_home, sweep_s

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


def ray_tune(
    python: Annotated[Path, typer.Argument(help="A Python with ray[tune].")],
    trials: Annotated[int, typer.Option(min=2, help="Trivial trials.")] = 200,
) -> None:
    """Measure seconds per trial of both, on as many workers as cores.

    Examples:
        PYTHONPATH=tests python -m benchmarks.ray_tune ~/ray/bin/python
    """
    before, workers = load(), num_cores()
    with made_home() as home:
        folder = Path(home)
        _by(python, folder, "import ray.tune")
        ours_s = sweep_s(folder, trials, workers) / trials
        words = (str(trials), str(workers), str(folder / "ray"))
        answer = json.loads(_by(python, folder, _RAY, *words))
    theirs_s = answer["seconds"] / trials
    seconds = {"headrace": ours_s, "Ray Tune": theirs_s, "ratio": theirs_s / ours_s}
    shown = {"trials": trials, "workers": workers, "seconds_per_trial": seconds, "load": before}
    shown |= {"ray": answer["version"], "machine": machine().model_dump()}
    typer.echo(json.dumps(shown, indent=1))


def _by(python: Path, folder: Path, *code: str) -> str:
    program = str(python.expanduser().absolute())  # unresolved: a link in a venv
    hint = "A peer needs: pip install 'ray[tune]', in a separate Python."
    return last_line(program, [program, "-c", *code], folder, hint=hint)


if __name__ == "__main__":
    typer.run(ray_tune)
