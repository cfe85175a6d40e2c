"""Memory of the device as the first tier: same batches, also when it does not fit or fails."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headrace.data import device_tier
from headrace.data.dataset import Reading
from headrace.data.device_tier import DeviceTier
from headrace.data.loaders import DataSettings
from headrace.data.module import HeadraceDataModule
from headrace.data.transforms import AddNoise, Normalize
from headrace.errors import SiteError
from headrace.files.manifest import FieldInfo
from headrace.recipe.load import parse
from headrace.recipe.recipe import DataSpec
from headrace.recipe.site import Site, Tier
from headrace_bench.shards import ShardWriter
from support.shards import write_dataset, write_fields

CPU = torch.device("cpu")
TOTAL = 40
GPU_TIER = Tier(name="gpu", reserve=0)


def jpeg(number: int, side: int = 16) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (side, side, 3), dtype=np.uint8)
    content = BytesIO()
    Image.fromarray(pixels).save(content, "JPEG")
    return content.getvalue()


def write_mixed(folder: Path, *, sides: tuple[int, ...] = (16,)) -> None:
    """Numbers, a compressed array, encoded images and text."""
    fields = [
        FieldInfo(name="image", dtype="uint8", layout="ragged", encoding="jpeg"),
        FieldInfo(name="name", dtype="uint8", layout="ragged", encoding="text"),
        FieldInfo(name="array", dtype="float32", shape=(8,), layout="fixed"),
        FieldInfo(
            name="packed", dtype="int16", shape=(3, 2), layout="fixed", codec="lz4",
            chunk_samples=4,
        ),
        FieldInfo(name="label", dtype="int64", layout="fixed"),
    ]  # fmt: skip

    def add(writer: ShardWriter, ids: np.ndarray[Any, Any]) -> None:
        numbers = ids.tolist()
        writer.add_ragged("image", [jpeg(n, sides[n % len(sides)]) for n in numbers])
        writer.add_ragged("name", [f"sample {n}".encode() for n in numbers])
        writer.add_fixed("array", np.repeat(ids[:, None], 8, axis=1).astype(np.float32))
        packed = np.repeat(ids, 6).reshape(-1, 3, 2).astype(np.int16)
        writer.add_fixed("packed", packed, codec="lz4", chunk_samples=4)
        writer.add_fixed("label", ids % 3)

    write_fields(folder, fields, add, splits={"train": TOTAL, "val": 8}, shard_samples=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tier") / "dataset"
    write_mixed(folder)
    return folder


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU's free memory, which this machine lacks."""
    monkeypatch.setattr(device_tier, "free_bytes", lambda _: 2**30)
    monkeypatch.setattr(device_tier, "_BLOCK_BYTES", 7000)
    return


def make_module(folder: Path, tier: Tier | None, **spec: Any) -> HeadraceDataModule:
    module = HeadraceDataModule(
        DataSettings(
            folder=folder,
            spec=DataSpec(global_batch_size=8, **spec),
            seed=3,
            rank=1,
            world_size=2,
            transforms=(Normalize(1, 2, field="array"),),
            augment=(AddNoise(0.5, field="array"),),
            gpu_tier=tier,
        )
    )
    module.trainer = SimpleNamespace(
        training=True, global_step=0, strategy=SimpleNamespace(root_device=CPU)
    )
    return module


def trained_on(module: HeadraceDataModule, *, epochs: int = 2) -> list[dict[str, Any]]:
    """Batches as the model gets them; the split is loaded in the first epoch, or the second."""
    batches = []
    for epoch in range(module.train_loader.state_dict()["epoch"], epochs):
        module.train_loader.set_epoch(epoch)
        for batch in module.train_loader:
            batches.append(module.on_after_batch_transfer(batch, 0))
            module.trainer.global_step += 1
    return batches


def assert_equal(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for name, values in one.items():
            if isinstance(values, torch.Tensor):
                assert values.dtype == other[name].dtype
                assert torch.equal(values, other[name]), name
            else:
                assert values == other[name]


def held(module: HeadraceDataModule) -> dict[str, torch.Tensor]:
    return module.train_loader.reader.gatherer.held


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"prefetch": 0},
        {"sampling": "balanced", "samples_per_epoch": 60},
        {"shuffle_window": 2, "drop_last": False},
        {"pad": 0.0},
    ],
)
def test_batches_from_the_device_equal_those_of_the_host(
    folder: Path, spec: dict[str, Any]
) -> None:
    """Also in the pass during which the split is loaded, and for fields that stay on the host."""
    module = make_module(folder, GPU_TIER, **spec)
    assert_equal(trained_on(module), trained_on(make_module(folder, None, **spec)))
    assert held(module).keys() == {"image", "array", "packed", "label", "sample_id"}
    assert module.train_loader.notes["gpu_tier"].startswith("holds ")
    assert len(held(module)["image"]) == TOTAL


def test_batches_of_fixed_fields_equal_those_of_the_host(tmp_path: Path) -> None:
    """Without ragged fields several batches are read at once."""
    numbers = np.arange(TOTAL)
    fields = {
        "array": np.arange(TOTAL * 8, dtype=np.float32).reshape(TOTAL, 8),
        "flag": numbers % 2 == 0,
        "half": numbers.astype(np.float16),
        "spectrum": (numbers + 1j).astype(np.complex64),
        "nothing": np.empty((TOTAL, 0), dtype=np.int32),
    }
    write_dataset(tmp_path / "d", fields, splits={"train": TOTAL}, shard_samples=9)
    module = make_module(tmp_path / "d", GPU_TIER)
    assert_equal(
        trained_on(module, epochs=3), trained_on(make_module(tmp_path / "d", None), epochs=3)
    )
    assert held(module).keys() == {*fields, "sample_id"}


def test_a_resume_goes_on_with_the_same_batches(folder: Path) -> None:
    whole = trained_on(make_module(folder, GPU_TIER))
    module = make_module(folder, GPU_TIER)
    order = module.state_dict()["order"]
    module.load_state_dict({"position": {"epoch": 0, "global_index": 16}, "order": order})
    assert_equal(trained_on(module), whole[2:])
    assert held(module)


def test_batches_come_from_what_is_held(folder: Path) -> None:
    module = make_module(folder, GPU_TIER)
    trained_on(module)
    held(module)["label"].fill_(7)
    module.train_loader.set_epoch(2)
    assert all((batch["label"] == 7).all() for batch in module.train_loader)


def test_memory_is_measured_after_an_optimizer_step(folder: Path) -> None:
    """Also after a resume, whose first step has a number."""
    module = make_module(folder, GPU_TIER)
    tier = DeviceTier(GPU_TIER, module.train_loader, Reading())
    for _ in range(3):  # accumulated batches
        tier.look(5, CPU)
    assert module.train_loader.notes == {}
    for step in range(6, 20):
        tier.look(step, CPU)
    assert module.train_loader.notes["gpu_tier"].startswith("holds ")


def begun(folder: Path, tier: Tier = GPU_TIER, reading: Reading | None = None) -> str:
    """What becomes of a tier after a step; the loader holds something only if it says so."""
    module = make_module(folder, None)
    device = DeviceTier(tier, module.train_loader, reading or Reading())
    for step in range(60):
        device.look(step, CPU)
    state = module.train_loader.notes["gpu_tier"]
    assert bool(held(module)) == state.startswith("holds ")
    device.look(60, CPU)
    assert module.train_loader.notes["gpu_tier"] == state  # it is decided once
    return state


def test_a_split_that_does_not_fit_stays_on_the_host(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = TOTAL * (16 * 16 * 3 + 8 * 4 + 6 * 2 + 8 + 8)
    assert begun(folder, Tier(name="gpu", reserve=0, budget=needed)).startswith("holds ")
    assert "needs 32.3KiB, may take 32.3KiB" in begun(
        folder, Tier(name="gpu", reserve=0, budget=needed - 1)
    )
    monkeypatch.setattr(device_tier, "free_bytes", lambda _: needed + 99)
    assert begun(folder, Tier(name="gpu", reserve=99)).startswith("holds ")
    assert "not used: needs" in begun(folder, Tier(name="gpu", reserve=100))
    assert "may take 0B" in begun(folder, Tier(name="gpu"))
    monkeypatch.setattr(device_tier, "free_bytes", lambda _: None)
    assert begun(folder) == "not used: no GPU is in use"


def test_memory_that_runs_out_leaves_the_split_on_the_host(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    monkeypatch.setattr(torch, "empty", full)
    state = begun(folder)
    assert state == "not used: CUDA out of memory. Tried to allocate 2 GiB more"


def test_a_split_that_cannot_be_loaded_stays_on_the_host(tmp_path: Path) -> None:
    write_mixed(tmp_path / "d", sides=(16,) * 30 + (24,))
    assert "Field 'image' of one batch holds uint8 (16, 16, 3)" in begun(tmp_path / "d")


def test_a_sample_is_never_stretched_to_the_shape_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pixel would fill all: PyTorch broadcasts what it copies."""
    monkeypatch.setattr(device_tier, "_BLOCK_BYTES", 1)
    write_mixed(tmp_path / "d", sides=(16,) * 39 + (1,))
    assert begun(tmp_path / "d") == "not used: samples of 'image' differ in shape"


def test_samples_that_python_changes_stay_on_the_host(folder: Path) -> None:
    for reading in (
        Reading(transforms=(lambda sample: sample,)),
        Reading(collate=lambda samples: {}),
        Reading(verify=True),
    ):
        assert "changed or verified on the host" in begun(folder, reading=reading)


def test_a_large_split_is_loaded_in_a_few_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_tier, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(device_tier, "_MOST_STEPS", 5)
    module = make_module(folder, GPU_TIER)
    assert module.tier is not None
    states = []
    for step in range(8):
        module.tier.look(step, CPU)
        states.append(module.train_loader.notes.get("gpu_tier", "").partition(" ")[0])
    assert states == ["", *["loads"] * 5, "holds", "holds"]


def test_shards_on_their_way_are_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_module(folder, GPU_TIER)
    assert module.tier is not None
    places = module.train_loader.dataset.places
    monkeypatch.setattr(type(places), "is_whole", False)
    for step in range(5):
        module.tier.look(step, CPU)
    assert module.train_loader.notes["gpu_tier"] == "waits for shards that are not on this node"
    monkeypatch.undo()
    monkeypatch.setattr(device_tier, "free_bytes", lambda _: 2**30)
    for step in range(5, 20):
        module.tier.look(step, CPU)
    assert held(module)


def test_free_memory_is_what_the_peak_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the function itself
    assert device_tier.free_bytes(CPU) is None
    figures = {"mem_get_info": (1000, 9000), "max_memory_reserved": 700, "memory_reserved": 400}
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert device_tier.free_bytes(torch.device("cuda", 0)) == 700


def site(*tiers: dict[str, Any]) -> Site:
    return parse(Site, {"name": "s", "folder": "/s", "roles": {"gpu": {}}, "tiers": tiers}, "site")


def test_gpus_are_the_first_tier_of_a_site() -> None:
    shm = {"name": "shm", "folder": "/dev/shm/x"}
    given = site({"name": "gpu", "reserve": "1GiB"}, shm)
    assert [tier.name for tier in given.tiers] == ["shm"]
    assert given.gpu_tier == Tier(name="gpu", reserve=2**30)
    assert Site.model_validate_json(given.model_dump_json(by_alias=True)) == given
    assert site(shm).gpu_tier is None
    folder = site({"name": "gpu", "folder": "/gpu"}, shm)  # a folder that is called so
    assert (folder.gpu_tier, len(folder.tiers)) == (None, 2)
    for tiers, problem in (
        ([{"name": "disk"}], "tier 'disk' has no folder"),
        ([shm, {"name": "gpu"}], "tier 'gpu' has no folder"),
        ([{"name": "gpu"}], "tiers with a folder follow"),
    ):
        with pytest.raises(SiteError, match=problem):
            site(*tiers)
