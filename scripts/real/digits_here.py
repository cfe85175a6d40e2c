"""Packs, stages and trains the digits by the engine alone: no Airflow, no Dask, no network.

python digits_here.py train PICTURES FOLDER    # FOLDER/found.json says what came of it
python digits_here.py compare FOLDER FOLDER    # the shards' bytes, and the weights
"""

from __future__ import annotations

import hashlib
import json
import mmap
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from headrace.clusters.node_calls import Node
from headrace.files.atomic import write_record
from headrace.files.layout import SiteFolder, StepFolder
from headrace.files.manifest_file import read_manifest
from headrace.recipe.load import load_recipe, parse
from headrace.recipe.site import Site
from headrace.steps.context import StepContext
from headrace.steps.mailbox import StepSpec

EPOCHS = 1


class Here:
    """The parts of a lease that packing and training need, in this process."""

    def map(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        check: Callable[[], None],
        retries: int = 0,
    ) -> Iterator[tuple[int, Any]]:
        """Yield results in order."""
        for index, item in enumerate(items):
            check()
            yield index, function(item)

    def nodes(self, count: int, timeout_s: float, *, check: Callable[[], None]) -> tuple[Node, ...]:
        """Return this node."""
        return (Node(name="here", address="", host="127.0.0.1", index=0),)

    def call(self, node: Node, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function."""
        return function(*arguments)

    def on_nodes(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        nodes: Sequence[Node],
        *,
        check: Callable[[], None],
    ) -> list[Any]:
        """Call a function for each node."""
        return [function(*each) for each in arguments]


def context_of(folder: Path, pictures: Path, name: str, number: int) -> StepContext:
    """Return a step of a run in this folder."""
    words = [f"dataset.source={pictures}", f"trainer.max_epochs={EPOCHS}", "pack_role=gpu"]
    recipe = load_recipe("digits", [*words, "train.ranks_per_node=1", "train.hang_timeout=2h"])
    gang = {"kind": "gang", "ranks_per_node": 1, "threads_per_rank": 1}
    tiers = [{"name": "disk", "folder": str(folder / "tier"), "reserve": 0}]
    content = {"name": "here", "folder": str(folder), "roles": {"gpu": gang}, "tiers": tiers}
    site = parse(Site, content, "here")
    run, step = (
        SiteFolder(folder).run("run"),
        StepFolder(folder / "leases/lease/steps" / f"{number}"),
    )
    for each in (run.path, step.logs, step.parts):
        each.mkdir(parents=True, exist_ok=True)
    write_record(run.recipe, recipe)
    write_record(run.site, site)
    spec = {"key": f"run/{name}", "kind": name, "run_id": "run", "name": name, "attempt": 1}
    made = StepSpec(**spec, run_folder=str(run.path))
    write_record(step.spec, made)
    return StepContext(folder=step, spec=made, recipe=recipe, site=site)


def train_digits(pictures: Path, folder: Path) -> None:
    """Pack, stage and train; write what was found."""
    from headrace.packing.pack_step import pack
    from headrace.training.machine_facts import machine_facts
    from headrace.training.train_step import train

    began_s = time.monotonic()
    packed = pack(context_of(folder, pictures, "pack", 1), lambda _: nullcontext(Here()))
    packed_s = time.monotonic() - began_s
    dataset = Path(packed["dataset"])
    context = context_of(folder, pictures, "train", 2)
    outputs = train(context, Here(), str(dataset), read_manifest(dataset))
    found = {
        "machine": platform.machine(),
        "page_bytes": mmap.PAGESIZE,
        "python": platform.python_version(),
        **machine_facts(),
        "pack_s": round(packed_s, 1),
        "train_s": round(time.monotonic() - began_s - packed_s, 1),
        "fingerprint": packed["fingerprint"],
        "shards": {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(dataset.rglob("*.h5"))
        },
        "staged": sum(1 for _ in (folder / "tier").rglob("*.h5")),
        **{name: outputs[name] for name in ("checkpoint", "steps", "metrics", "weights_xxh3")},
    }
    (folder / "found.json").write_text(json.dumps(found, indent=1))


def compare(first: Path, second: Path) -> int:
    """Print both, and whether shards are equal to the byte and weights nearly."""
    import torch

    both = [json.loads((folder / "found.json").read_text()) for folder in (first, second)]
    lines = [f"{name}: {' | '.join(str(each.get(name)) for each in both)}" for name in both[0]]
    files = [folder / "runs/run/checkpoints" / Path(each["checkpoint"]).name
             for folder, each in zip((first, second), both, strict=True)]  # fmt: skip
    weights = [torch.load(file, weights_only=True)["state_dict"] for file in files]
    far = max(float((weights[0][key] - weights[1][key]).abs().max()) for key in weights[0])
    same = bool(both[0]["shards"]) and both[0]["shards"] == both[1]["shards"]
    lines += [f"shards: {'the same bytes' if same else 'DIFFERENT'}", f"weights: {far:.2g} apart"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if same and far < 1e-3 else 1


if __name__ == "__main__":
    what, *folders = sys.argv[1:]
    act = {"train": train_digits, "compare": compare}[what]
    sys.exit(act(*map(Path, folders)))
