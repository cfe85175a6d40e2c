"""Source folders, and pack steps that run on this very process in place of a lease."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headrace.files.layout import LeaseFolder
from headrace.packing.pack_shard import PackedShard, PackTask
from headrace.packing.pack_step import pack
from headrace.steps.context import StepContext
from headrace_bench.pack_headrace import pack_context


class InProcess:
    """`Fleet.map` without workers: the same calls, in the order given, in this process."""

    def __init__(
        self,
        order: Callable[[int], Sequence[int]] = range,
        before: Callable[[PackTask], None] = lambda _: None,
    ) -> None:
        self.order = order
        self.before = before
        self.num_calls = 0

    def __call__(self, _: LeaseFolder) -> "AbstractContextManager[InProcess]":
        return nullcontext(self)

    def map(
        self,
        function: Callable[[PackTask], PackedShard],
        items: Sequence[PackTask],
        *,
        check: Callable[[], None],
        left_s: Callable[[], float],
    ) -> Iterator[tuple[int, PackedShard]]:
        del left_s
        for index in self.order(len(items)):
            check()
            self.num_calls += 1
            self.before(items[index])
            yield index, function(items[index])


def write_image(path: Path, shade: int, size: tuple[int, int] = (4, 3), mode: str = "L") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 1, 2)).save(path)
    return path


@pytest.fixture
def image_source(tmp_path: Path) -> Path:
    """Forty grey images of 4 x 3 pixels in the class folders `cat` and `dog`."""
    folder = tmp_path / "images"
    for number in range(40):
        write_image(folder / ("cat" if number % 4 else "dog") / f"{number:02d}.png", number)
    return folder


@pytest.fixture
def array_source(tmp_path: Path) -> Path:
    """Twenty float arrays (2, 3) without labels."""
    folder = tmp_path / "arrays"
    folder.mkdir()
    for number in range(20):
        np.save(folder / f"{number:02d}.npy", np.full((2, 3), number / 2, dtype=np.float32))
    return folder


MakeContext = Callable[..., StepContext]


@pytest.fixture
def make_context(tmp_path: Path) -> MakeContext:
    """Context of a pack step: `make(source, dataset={...}, pack={...}, site_folder=...)`."""
    numbers = iter(range(1, 100))

    def make(
        source: Path | None,
        dataset: dict[str, Any] | None = None,
        pack: dict[str, Any] | None = None,
        site_folder: Path | None = None,
    ) -> StepContext:
        given = {"name": "tiny", "splits": {"train": 0.5, "val": 0.25, "test": 0.25}}
        if source is not None:
            given["source"] = str(source)
        recipe = {
            "name": "tiny",
            "dataset": {**given, **(dataset or {})},
            "pack": {"shard_samples": 8, **(pack or {})},
            "model": {"_target_": "torch.nn.Identity"},
        }
        site = {
            "name": "here",
            "folder": str(site_folder or tmp_path / "site"),
            "roles": {"cpu": {}},
            "tiers": [{"name": "disk", "folder": str(tmp_path / "cache")}],
        }
        step = tmp_path / "lease" / "steps" / f"{next(numbers):06d}"
        return pack_context(step, recipe, site, "r")

    return make


@pytest.fixture
def in_process() -> InProcess:
    """Runs shards here, in order."""
    return InProcess()


@pytest.fixture
def backwards() -> InProcess:
    """Runs shards here, the last first."""
    return InProcess(lambda count: range(count)[::-1])


@pytest.fixture
def packs(make_context: MakeContext, in_process: InProcess) -> Callable[..., dict[str, Any]]:
    """Packs here, in order, with the arguments of `make_context`."""
    return lambda *arguments, **more: pack(make_context(*arguments, **more), in_process)
