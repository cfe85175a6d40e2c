"""A training without a lease: the node's function in this process, real ranks below it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.clusters.node_calls import Node
from headrace.errors import HeadraceError
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder, SiteFolder
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import read_manifest
from headrace.recipe.load import parse
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.steps.context import StepContext
from headrace.training.launch_records import NodeLaunch
from headrace.training.train_step import train
from support.factories import step_spec
from support.shards import write_dataset

CODE = Path(__file__).parent / "training_code"
"""Folder of user code: `blob_models`, `sum_script.py`."""


def write_blobs(folder: Path, *, train_samples: int = 80, val_samples: int = 11) -> Manifest:
    """Three classes of noisy vectors of eight numbers."""
    generator = np.random.default_rng(3)
    total = train_samples + val_samples
    label = generator.integers(0, 3, total)
    array = (generator.normal(size=(total, 8)) + 2 * np.eye(3, 8)[label]).astype(np.float32)
    return write_dataset(
        folder,
        {"array": array, "label": label.astype(np.int64)},
        splits={"train": train_samples, "val": val_samples} if val_samples else {"train": total},
        classes=("a", "b", "c"),
    )


class ThisProcessFleet:
    """Nodes that are threads of this process; what a gang needs of a fleet.

    Args:
        num_nodes: Nodes there are.
    """

    def __init__(self, num_nodes: int = 1) -> None:
        self._nodes = tuple(
            Node(name=f"node-{index}", address="", host="127.0.0.1", index=index)
            for index in range(num_nodes)
        )

    def nodes(self, count: int, timeout_s: float, *, check: Callable[[], None]) -> tuple[Node, ...]:
        del timeout_s
        check()
        return self._nodes[:count]

    def call(self, node: Node, function: Callable[..., Any], *arguments: Any) -> Any:
        del node
        return function(*arguments)

    def on_nodes(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        nodes: Sequence[Node],
        *,
        check: Callable[[], None],
    ) -> list[Any]:
        # the pool's threads outlive the calls, as those of a Dask worker: the kernel ties the
        # lives of ranks to the thread that started them
        with ThreadPoolExecutor(len(nodes)) as pool:
            calls = [pool.submit(function, *each) for each in arguments]
            while not all(call.done() for call in calls):
                check()
                wait(calls, timeout=0.1, return_when=FIRST_COMPLETED)
            return [call.result() for call in calls]


def make_recipe(content: Mapping[str, Any]) -> Recipe:
    """A recipe from its keys; name, dataset and evaluation have defaults."""
    defaults: dict[str, Any] = {
        "name": "small",
        "dataset": {"name": "small", "path": "unused"},
        "evaluate": None,
    }
    return parse(Recipe, defaults | dict(content), "test")


def streamed_recipe(notes: Path) -> dict[str, Any]:
    """Keys of a recipe that trains on what no tier holds, with the model's notes in a folder."""
    data, trainer = {"shuffle_window": 2}, {"max_epochs": 2}
    return blob_recipe(notes, {"pause_s": 0.02}, data=data, trainer=trainer) | {
        "stage": {"partial": True}
    }


def blob_recipe(notes: Path, model: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """Keys of a recipe that trains a model of `blob_models`, which takes notes in a folder."""
    notes.mkdir(parents=True, exist_ok=True)
    usual: dict[str, dict[str, Any]] = {
        "data": {"global_batch_size": 8},
        "model": {"_target_": "blob_models.BlobModel", "notes": str(notes), **model},
        "trainer": {"accelerator": "cpu", "max_epochs": 2, "checkpoint_every_steps": 3},
    }
    own = {key: {**usual.get(key, {}), **value} for key, value in keys.items()}
    return {"seed": 5, "code": [str(CODE)], **usual, **own}


def blob_step(
    folder: Path,
    model: Mapping[str, Any] | None = None,
    *,
    site: Mapping[str, Any] | None = None,
    **keys: Mapping[str, Any],
) -> StepContext:
    """A step that trains blobs in `folder`; another call is another attempt of the same run.

    Args:
        folder: Of the site; the model's notes are in `notes` there.
        model: More of its arguments.
        site: Keys of `make_site`, such as `ranks`.
        keys: Parts of the recipe, added to the usual ones.
    """
    recipe = make_recipe(blob_recipe(folder / "notes", model or {}, **keys))
    return make_context(
        folder, recipe, make_site(folder, **{"allowed_code": [str(CODE)], **(site or {})})
    )


def make_launch(folder: Path | str = "/nowhere", **others: Any) -> NodeLaunch:
    """A launch of one rank on one node of this machine, with its run and step below a folder."""
    usual: dict[str, Any] = {
        "run_folder": f"{folder}/run", "step_folder": f"{folder}/step", "dataset": "d",
        "number": 1, "node_name": "node-0", "host": "127.0.0.1", "master_address": "127.0.0.1",
        "resume": None,
    }  # fmt: skip
    return NodeLaunch(**usual | others)


def events_of(context: StepContext, name: str) -> list[dict[str, Any]]:
    """Events of a step that have this name."""
    lines = context.folder.events.read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def trained(folder: Path) -> dict[tuple[str, int], list[int]]:
    """What ranks of a `blob_step` trained in each step in the end: `(file, step) -> samples`."""
    return {
        (file.name, note["step"]): note["samples"]
        for file in sorted((folder / "notes").glob("rank-*.jsonl"))
        for note in map(json.loads, file.read_text().splitlines())
    }


def make_site(folder: Path, *, ranks: int = 2, nodes: int = 1, **content: Any) -> Site:
    """A site with one gang and one tier below a folder."""
    return parse(
        Site,
        {
            "name": "here",
            "folder": str(folder),
            "roles": {"gpu": {"kind": "gang", "nodes": nodes, "ranks_per_node": ranks}},
            "tiers": [{"name": "disk", "folder": str(folder / "tier"), "reserve": 0}],
            **content,
        },
        "test",
    )


def make_context(folder: Path, recipe: Recipe, site: Site, *, run: str = "run") -> StepContext:
    """A step in a run's folder; another call with the same run is another attempt."""
    run_folder: RunFolder = SiteFolder(folder).run(run)
    run_folder.path.mkdir(parents=True, exist_ok=True)
    write_record(run_folder.recipe, recipe)
    write_record(run_folder.site, site)
    lease = SiteFolder(folder).lease(f"lease-{uuid.uuid4().hex[:8]}")
    step = lease.step(1)
    step.logs.mkdir(parents=True)
    step.parts.mkdir()
    spec = step_spec(run_folder, "train")
    write_record(step.spec, spec)
    return StepContext(folder=step, spec=spec, recipe=recipe, site=site)


def train_here(
    context: StepContext, dataset: Path, fleet: ThisProcessFleet | None = None
) -> dict[str, Any]:
    """Run the train step on this machine without a lease."""
    return train(context, fleet or ThisProcessFleet(), str(dataset), read_manifest(dataset))


def failure(context: StepContext, dataset: Path) -> HeadraceError:
    """What a training fails with."""
    with pytest.raises(HeadraceError) as caught:
        train_here(context, dataset)
    return caught.value


def weights_here(folder: Path, recipe: Recipe, dataset: str, *, ranks: int) -> str:
    """Hash of the weights that a recipe gives on this machine when nobody disturbs it."""
    allowed = {"allowed_code": ["/"], "allowed_sources": ["/"], "allowed_outputs": ["/"]}
    context = make_context(folder, recipe, make_site(folder, ranks=ranks, **allowed))
    return str(train_here(context, Path(dataset))["weights_xxh3"])
