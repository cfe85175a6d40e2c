"""The pack step on processes of this machine, without a lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from headrace.clusters.node_calls import Item, OneNode, Result, no_check, no_end
from headrace.files.layout import StepFolder
from headrace.packing.pack_step import pack
from headrace.recipe.load import parse
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site, StoreOptions
from headrace.steps.context import StepContext
from headrace.steps.mailbox import StepSpec
from headrace_bench.machine import num_cores
from headrace_bench.rclone import environment

_SHARDS_A_PROCESS = 4
"""Least number of shards, so that the work is divided equally over processes."""


@contextmanager
def new_pool() -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of these; each is a new process, without the working folder (Python >= 3.11)."""
    spawn = get_context("spawn")
    with environment({"PYTHONSAFEPATH": "1"}), ProcessPoolExecutor(num_cores(), spawn) as pool:
        yield pool


class PoolFleet(OneNode):
    """The part of a lease that packing needs, done by a pool of processes."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        super().__init__(Role())
        self._pool = pool

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        check: Callable[[], None] = no_check,
        left_s: Callable[[], float] = no_end,
    ) -> Iterator[tuple[int, Result]]:
        """Yield results of `function` with the index of their item, in the order of completion."""
        del left_s
        futures = {self._pool.submit(function, item): index for index, item in enumerate(items)}
        for future in as_completed(futures):
            check()
            yield futures[future], future.result()


def shard_bytes_of(num_bytes: int, sample_bytes: int = 1) -> int:
    """Return a size of shards, small enough that each process gets several."""
    num_shards = _SHARDS_A_PROCESS * num_cores()
    return min(64 * 2**20, max(num_bytes // num_shards, sample_bytes))


def pack_folder(
    source: Path | str,
    site_folder: Path,
    pool: ProcessPoolExecutor,
    shard_bytes: int,
    options: Mapping[str, str],
    s3: StoreOptions | None = None,
) -> None:
    """Pack files in class folders, or a file of rows, into `site_folder / "datasets"`.

    The source may be an S3 prefix; `options` are added to the recipe's `pack`.
    """
    recipe = {
        "name": "benchmark",
        "dataset": {"name": "benchmark", "source": str(source), "splits": {"train": 1.0}},
        "pack": {"shard_bytes": shard_bytes, "shards_multiple_of": num_cores(), **options},
        "model": {"_target_": "torch.nn.Identity"},
        "evaluate": {"split": "train"},
    }
    site = {
        "name": "benchmark",
        "folder": str(site_folder),
        "roles": {"cpu": {}},
        "tiers": [{"name": "bench", "folder": str(site_folder)}],
        "s3": (s3 or StoreOptions()).model_dump(),
    }
    context = pack_context(site_folder / "steps" / "000001", recipe, site)
    pack(context, lambda _: nullcontext(PoolFleet(pool)))


def pack_context(
    step: Path, recipe: Mapping[str, Any], site: Mapping[str, Any], run_id: str = "benchmark"
) -> StepContext:
    """Return the context of a pack step outside of a run, in a new folder."""
    folder, run = StepFolder(step), str(step.parents[1] / "run")
    folder.path.mkdir(parents=True)
    spec = StepSpec(
        key=f"{run_id}/pack/1", kind="pack", run_id=run_id, name="pack", attempt=1, run_folder=run
    )
    return StepContext(
        folder=folder,
        spec=spec,
        recipe=parse(Recipe, dict(recipe), run_id),
        site=parse(Site, dict(site), run_id),
    )
