"""The command of a rank that runs a user's script, module or program, and its arguments; pure.

Words go to the program as they are: no shell reads them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from yaml import YAMLError

from headrace.files.layout import RunFolder
from headrace.processes.working_folder import python_module
from headrace.recipe.base import ScriptArguments
from headrace.recipe.overrides import as_override, in_hydra
from headrace.recipe.recipe import Recipe
from headrace.training.launch_records import NodeLaunch, NodeReady

_Fill = Callable[[str], str]


def script_command(node: NodeReady, recipe: Recipe, rank: int) -> tuple[str, ...]:
    """Return the program of a rank and its arguments."""
    train, fill = recipe.train, _filling(node, recipe.seed, rank)
    python = (sys.executable, "-u")
    if train.script is not None:
        start: tuple[str, ...] = (*python, os.path.expanduser(train.script))
    elif train.module is not None:
        start = python_module(train.module)  # copied code comes before the working folder
    else:
        start = tuple(map(fill, train.command))
    return (*start, *words_of(train.args, fill))


def words_of(args: ScriptArguments, fill: _Fill = str) -> tuple[str, ...]:
    """Return the words of arguments.

    A name that begins with a dash becomes an option: `--epochs=3`, `-n 3`, for a list the name and
    its values as words, for true the name alone; false and null leave it out. argparse, click, fire
    and tyro read these forms. Another name becomes `opt.lr=0.1`, its value in Hydra's grammar.
    """
    if not isinstance(args, Mapping):
        return tuple(fill(str(each)) for each in args)
    return tuple(word for name, value in args.items() for word in _named(name, value, fill))


def _named(name: str, value: object, fill: _Fill) -> Iterator[str]:
    is_list, given = isinstance(value, tuple), value if isinstance(value, tuple) else (value,)
    values = [fill(each) if isinstance(each, str) else each for each in given]
    if not name.startswith("-"):
        whole = values if is_list else values[0]
        yield f"{name}={whole}" if _reads_as_itself(whole) else as_override(name, whole)
    elif is_list or value is None or isinstance(value, bool):
        yield from (name,) if value not in (False, None) else ()
        yield from map(str, values if is_list else ())
    else:
        yield from (f"{name}={values[0]}",) if name.startswith("--") else (name, str(values[0]))


def _reads_as_itself(value: object) -> bool:
    """Whether Hydra reads a value as this text."""
    try:
        return isinstance(value, str) and bool(in_hydra(value).value() == value)
    except (YAMLError, TypeError):
        return False


def _filling(node: NodeReady, seed: int, rank: int) -> _Fill:
    """Return what replaces placeholders in a text; `{{seed}}` becomes `{seed}`."""
    launch = node.launch
    run = RunFolder(Path(launch.run_folder))
    values = {
        "run": run.path,
        "checkpoints": run.checkpoints,
        "dataset": node.dataset,
        "seed": seed,
        "rank": rank,
        "local_rank": rank - launch.ranks.start,
        "trial": int(run.path.name) if run.is_trial else 0,
    }
    names = "|".join(values)
    pattern = re.compile(rf"\{{(\{{(?:{names})\}})\}}|\{{({names})\}}")
    return lambda text: pattern.sub(lambda m: m[1] or str(values[m[2]]), text)


def tensorflow_config(launch: NodeLaunch, rank: int) -> dict[str, str]:
    """Return `TF_CONFIG` with all ranks as workers; empty for one rank.

    Source: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
    """
    hosts = (host for host in launch.hosts for _ in range(launch.ranks_per_node))
    workers = [f"{host}:{port}" for host, port in zip(hosts, launch.ports, strict=True)]
    whole = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    return {"TF_CONFIG": json.dumps(whole)} if launch.world_size > 1 else {}
