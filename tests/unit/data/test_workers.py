"""Worker processes: the same batches as threads, named losses, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import get_worker_info

from headrace.data.dataset import OwnDataset, Reading
from headrace.data.loaders import Loaders
from headrace.data.transforms import RandomResizedCrop
from headrace.data.workers import workers_pay
from headrace.errors import RecipeError, UserCodeError, UserError, WorkerLostError
from headrace.files.manifest import FieldInfo
from headrace.recipe.load import parse
from headrace.recipe.recipe import CROP, Recipe
from headrace.shards.shard_locations import ShardPlaces
from headrace_bench.shards import ShardWriter
from support.loaders import NAMED, settings_of_ranks, steps_of
from support.shards import write_fields
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_leftover_processes")

TRAIN, VAL, BATCH = 47, 11, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Samples with a vector, a label, an array of varying length, and text."""
    folder = tmp_path_factory.mktemp("workers") / "dataset"
    fields = (
        FieldInfo(name="length", dtype="float32", layout="ragged"),
        FieldInfo(name="words", dtype="uint8", layout="ragged", encoding="text"),
        FieldInfo(name="vector", dtype="float32", layout="fixed", shape=(3, 2)),
        FieldInfo(name="label", dtype="int64", layout="fixed"),
    )

    def add(writer: ShardWriter, ids: np.ndarray) -> None:
        writer.add_ragged("length", [np.full(i % 4, i, np.float32).tobytes() for i in ids])
        writer.add_ragged("words", [f"sämple {i}".encode() for i in ids])
        writer.add_fixed("vector", np.repeat(ids, 6).reshape(-1, 3, 2).astype(np.float32))
        writer.add_fixed("label", (ids % 10).astype(np.int64))

    write_fields(folder, fields, add, splits={"train": TRAIN, "val": VAL}, shard_samples=10)
    return folder


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.data.loaders.num_cores", lambda: 2)


class Noisy:
    """Noise of the generator; none in evaluation."""

    def __call__(self, sample: dict[str, Any], generator: torch.Generator | None) -> dict[str, Any]:
        noise = 0 if generator is None else torch.randn(3, 2, generator=generator)
        return {**sample, "vector": sample["vector"] + noise}


def pairs(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A nested batch of other kinds of values: strides, dtypes, empty, shared, numbers."""
    vectors = torch.stack([each["vector"] for each in samples])
    return {
        "vector": vectors.permute(0, 2, 1),
        "halves": {"low": vectors.bfloat16(), "list": [each["length"] for each in samples]},
        "same": (vectors, vectors),
        "strided": vectors[:, ::2],
        "none": torch.empty(0, 4),
        "one": torch.tensor(len(samples)),
        "array": np.arange(3),
        "words": [each["words"] for each in samples],
        "label": torch.tensor([int(each["label"]) for each in samples]),
    }


class Backwards:
    """The split, last sample first, with the one before."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, Any]:
        place = len(self) - 1 - number
        before = self.samples[place - 1]["label"]
        return {"vector": self.samples[place]["vector"], "label": before, "number": number}


READINGS = {
    "transforms": {"transforms": (Noisy(),), "pad": 0.0},
    "collate": {"transforms": (Noisy(),), "collate": pairs},
    "dataset": {"own": OwnDataset("my.Own", Backwards), "transforms": (Noisy(),)},
}
KEYS = {"transforms": "sample_transforms", "collate": "collate", "dataset": "dataset"}


def loaders_of(
    folder: Path, workers: int | str, reading: Reading, world_size: int = 1, **more: Any
) -> list[Loaders]:
    """Those of every rank."""
    keys = {"workers": workers, "reading": reading, "drop_last": False, **more}
    keys = {"batch": BATCH, "seed": 3, "sample_transforms": (NAMED,), **keys}
    return [Loaders(each) for each in settings_of_ranks(folder, world_size, **keys)]


def facts(value: Any) -> Any:
    """All that a batch holds: bits, dtype, shape, strides."""
    if isinstance(value, torch.Tensor):
        bits = value.contiguous().reshape(-1).view(torch.uint8).tolist()
        return str(value.dtype), tuple(value.shape), value.stride(), bits
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {name: facts(each) for name, each in value.items()}
    return type(value)(map(facts, value)) if isinstance(value, list | tuple) else value


def epoch_of(ranks: list[Loaders], epoch: int = 1) -> list[list[Any]]:
    steps = steps_of([each.train for each in ranks], epoch)
    return [[facts(batch) for batch in step] for step in steps]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", READINGS)
def test_batches_are_those_of_threads(folder, kind, workers, world_size):
    reading = Reading(**READINGS[kind])
    by_threads = loaders_of(folder, 0, reading, world_size)
    by_processes = loaders_of(folder, workers, reading, world_size)
    for epoch in (0, 1):
        assert epoch_of(by_processes, epoch) == epoch_of(by_threads, epoch)
    for ours, theirs in zip(by_processes, by_threads, strict=True):
        assert [*map(facts, ours.validation())] == [*map(facts, theirs.validation())]
        assert ours.train.notes == {"batches": f"made by {workers} processes"}
        assert theirs.train.workers is None


def workers_of(process: psutil.Process | None = None) -> list[psutil.Process]:
    """The living processes that make batches for a process, by default this one."""
    children = (process or psutil.Process()).children(recursive=True)
    return [each for each in children if each.name().startswith("worker ") and each.is_running()]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (3, 1)])
@pytest.mark.parametrize("ranks", [(1, 2), (3, 1)])
def test_training_continues_at_its_position_with_other_workers_and_ranks(
    folder, ranks, before, after
):
    reading = Reading(**READINGS["transforms"])

    def ids_and_noise(found: list[Loaders], count: int | None) -> list[Any]:
        steps = islice(zip(*(each.train for each in found), strict=True), count)
        return [
            [values for batch in step for values in zip(batch["sample_id"].tolist(),
            batch["vector"].tolist(), strict=True)] for step in steps
        ]  # fmt: skip

    whole = ids_and_noise(loaders_of(folder, 0, reading), None)
    first = loaders_of(folder, before, reading, ranks[0])
    start = ids_and_noise(first, 2)
    assert {str(each.train.state_dict()) for each in first} == {
        str({"epoch": 0, "global_index": 2 * BATCH})
    }
    second = loaders_of(folder, after, reading, ranks[1])
    for each in second:
        each.train.load_state_dict(first[0].train.state_dict())
    found = start + ids_and_noise(second, None)
    assert found[:3] == whole[:3]
    assert found[3] == whole[3][: len(found[3])]


def test_a_validation_in_the_middle_of_an_epoch_leaves_both_in_order(folder):
    """Lightning keeps the training's iterator meanwhile; both ask the same processes."""
    threads, processes = (
        loaders_of(folder, count, Reading(**READINGS["transforms"]))[0] for count in (0, 2)
    )
    found = []
    for each in (threads, processes):
        training = iter(each.train)
        parts = [facts(next(training))]
        parts += map(facts, each.validation())
        parts += map(facts, training)
        found.append(parts)
    assert found[0] == found[1]


class Failing:
    """Raises at the sample with a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["sample_id"]) == self.number:
            return {**sample, "label": {}["colour"]}
        return sample


@pytest.mark.parametrize("workers", [2, "auto"])
def test_errors_are_those_of_threads(folder, workers):
    told = []
    for count in (0, workers):
        (found,) = loaders_of(folder, count, Reading(pad=0.0, transforms=(Failing(31),)))
        if count:
            found.train.workers._begin()
        with pytest.raises(UserCodeError) as caught:
            list(found.train)
        told.append((caught.value.what, caught.value.hint, caught.value.where, caught.value.trace))
    assert told[0] == told[1]
    assert "KeyError: 'colour'" in told[1][0]
    assert told[1][2] == "sample 31"


class Stopping:
    """Ends its process by a signal, once, if that is not the process `spares`."""

    def __init__(self, number: signal.Signals, spares: int) -> None:
        self.number, self.spares = number, spares

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if os.getpid() != self.spares and int(sample["sample_id"]) == 31:
            os.kill(os.getpid(), self.number)
        return {**sample, "pid": torch.tensor(os.getpid())}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_is_named(folder, number):
    reading = Reading(pad=0.0, transforms=(Stopping(number, os.getpid()),))
    (found,) = loaders_of(folder, 2, reading)
    with pytest.raises(
        WorkerLostError, match=rf"{number.name}: process \d+ of data.workers"
    ) as caught:
        list(found.train)
    assert "data.workers" in caught.value.hint


def test_threads_make_what_a_killed_worker_could_not_if_nobody_chose_workers(folder):
    reading = Reading(pad=0.0, transforms=(Stopping(signal.SIGKILL, os.getpid()),))
    (found,) = loaders_of(folder, "auto", reading)
    found.train.workers._begin()
    batches = list(found.train)
    ids = [number for batch in batches for number in batch["sample_id"].tolist()]
    assert ids == [
        number for batch in loaders_of(folder, 0, Reading(pad=0.0))[0].train
        for number in batch["sample_id"].tolist()
    ]  # fmt: skip
    assert batches[0]["pid"][0] != os.getpid() == batches[-1]["pid"][0]
    assert found.train.notes["batches"].startswith("made by threads, since The worker ")


class Unsendable:
    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"lock": threading.Lock(), "label": torch.zeros(len(samples))}


def test_a_batch_that_cannot_be_sent_is_refused_or_made_by_threads(folder):
    (named,) = loaders_of(folder, 1, Reading(collate=Unsendable()))
    with pytest.raises(UserError, match="cannot leave the process that made it: TypeError"):
        next(iter(named.train))
    (chosen,) = loaders_of(folder, "auto", Reading(collate=Unsendable()))
    chosen.train.workers._begin()
    assert len(list(chosen.train)) == len(chosen.train)
    assert "cannot leave" in chosen.train.notes["batches"]


def remembered(sample: dict[str, Any]) -> dict[str, Any]:
    info = get_worker_info()
    return {**sample, "seen": torch.tensor([info.id, info.num_workers, torch.get_num_threads()])}


def test_a_worker_has_one_thread_and_calls_itself_one(folder):
    (found,) = loaders_of(folder, 2, Reading(pad=0.0, transforms=(remembered,)))
    before = torch.get_num_threads()
    seen = torch.cat([batch["seen"] for batch in found.train])
    assert seen.unique(dim=0).tolist() == [[0, 2, 1], [1, 2, 1]]
    assert torch.get_num_threads() == before
    assert get_worker_info() is None


class Made:
    """Counts objects made in this process."""

    count = 0

    def __init__(self) -> None:
        Made.count += 1
        self.file = os.memfd_create("own")

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "made": torch.tensor([Made.count, self.file])}


def test_each_worker_makes_the_users_objects_again(folder):
    """A file that was open before the fork would have one position for all."""
    own = Made()
    again = lambda: Reading(pad=0.0, transforms=(Made(),))  # noqa: E731
    (found,) = loaders_of(folder, 2, Reading(pad=0.0, transforms=(own,)), read_again=again)
    batches = [*found.train, *found.validation()]
    assert {tuple(each.tolist()) for batch in batches for each in batch["made"]} == {
        (2, batches[0]["made"][0, 1].item())
    }
    os.close(own.file)


def test_the_default_dtype_is_that_of_the_rank(folder):
    (found,) = loaders_of(
        folder,
        1,
        Reading(pad=0.0, transforms=(lambda sample: {**sample, "two": torch.tensor(2.5)},)),
    )
    torch.set_default_dtype(torch.float64)
    try:
        assert next(iter(found.train))["two"].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("waited_s", "used_s", "num", "left", "pays"),
    [
        (5.0, 5.0, 10, 1000, True),
        (5.0, 5.0, 10, 10, False),  # 5 s of waiting are left
        (1.0, 9.0, 10, 100, True),
        (0.9, 9.1, 10, 10_000, False),  # a small share
        (0.0, 0.0, 8, 10_000, False),
        (5.0, 0.0, 10, 0, False),
    ],
)
def test_processes_pay_for_much_waiting_in_a_long_run(waited_s, used_s, num, left, pays):
    assert workers_pay(waited_s, used_s, num, left) is pays


def test_auto_begins_with_threads_and_goes_over_to_processes(folder, monkeypatch):
    """By a clock by which each batch is awaited for a second, of a run of 20 epochs."""
    now = iter(range(10**6))
    (found,) = loaders_of(folder, "auto", Reading(**READINGS["transforms"]),
                          num_epochs=20)  # fmt: skip
    (threads,) = loaders_of(folder, 0, Reading(**READINGS["transforms"]))
    monkeypatch.setattr("headrace.data.ahead.time.perf_counter", lambda: float(next(now)))
    before, made_by = workers_of(), []
    for epoch in range(4):
        for each in (found, threads):
            each.train.set_epoch(epoch)
        for batch, other in zip(found.train, threads.train, strict=True):
            made_by.append(found.train.notes.get("batches", ""))
            assert facts(batch) == facts(other)
    assert made_by[:8] == [""] * 8
    assert made_by[8:] == ["made by 2 processes"] * 8
    assert len(set(workers_of()) - set(before)) == 2


@pytest.mark.parametrize(
    ("cores", "more", "reading"),
    [
        (1, {}, Reading(**READINGS["transforms"])),
        (2, {}, Reading()),
        (2, {"prefetch": 0}, Reading(**READINGS["transforms"])),
    ],
)
def test_auto_starts_nothing_where_processes_cannot_help(folder, cores, more, reading, monkeypatch):
    monkeypatch.setattr("headrace.data.loaders.num_cores", lambda: cores)
    (found,) = loaders_of(folder, "auto", reading, **more)
    assert found.train.workers is None
    assert found.train.notes == {}


def test_crops_at_decoding_are_not_python_of_the_user():
    crop = RandomResizedCrop(size=8)
    assert not Reading(transforms=(crop,)).is_per_sample
    assert Reading(transforms=(crop, Noisy())).is_per_sample


def test_threads_read_shards_that_are_not_on_the_node(folder, monkeypatch):
    """Each process would fetch shards of its own."""
    monkeypatch.setattr(ShardPlaces, "is_whole", property(lambda _: False))
    (found,) = loaders_of(folder, "auto", Reading(**READINGS["transforms"]))
    assert found.train.workers is found.validation().workers is None


def test_no_process_is_forked_from_one_that_uses_a_gpu(folder, monkeypatch):
    """A script may call for its loader late."""
    monkeypatch.setattr("headrace.data.loaders.holds_gpu", lambda: True)
    reading = Reading(**READINGS["transforms"])
    assert loaders_of(folder, "auto", reading)[0].train.workers is None
    with pytest.raises(UserError, match="has begun to use a GPU"):
        loaders_of(folder, 2, reading)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"data": {"workers": 2}}, "workers: 2 goes with sample_transforms"),
        ({"data": {"workers": 2, "sample_transforms": [{"_target_": CROP}]}},
         "workers: 2 goes with sample_transforms"),
        ({"data": {"workers": -1}}, "data.workers: give an integer"),
        ({"data": {"workers": 2, "collate": {"_target_": "my.C"}}, "stage": {"partial": True}},
         "need all shards on the node"),
        ({"data": {"workers": 2, "collate": {"_target_": "my.C"}}, "stage": {"overlap": True}},
         "need all shards on the node"),
    ],
)  # fmt: skip
def test_workers_that_cannot_help_are_refused(keys, told):
    content = {"name": "r", "dataset": {"name": "d", "path": "p"}, "model": {"_target_": "m.M"}}
    with pytest.raises(RecipeError, match=told):
        parse(Recipe, {**content, **keys}, "test")


RANK = """
import sys
from pathlib import Path
import torch
from headrace.data.dataset import Reading
from headrace.data.loaders import DataSettings, Loaders
from headrace.recipe.base import Target
from headrace.recipe.recipe import DataSpec

def forever(sample):
    while int(sample["sample_id"]) == 46:
        pass
    return sample

named = Target.model_validate({"_target_": "my.Own"})
spec = DataSpec(global_batch_size=2, workers=2, sample_transforms=[named])
reading = Reading(pad=0.0, transforms=(forever,))
loaders = Loaders(DataSettings(folder=Path(sys.argv[1]), spec=spec, seed=3, reading=reading))
for number, batch in enumerate(loaders.train):
    print(number, flush=True)
"""


def test_a_killed_rank_leaves_no_worker_behind(folder):
    """Also none in the middle of a transform that does not end."""
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, str(folder)], stdout=subprocess.PIPE, text=True
    )
    process = psutil.Process(rank.pid)
    assert rank.stdout is not None
    line = rank.stdout.readline()

    def are_at_work() -> bool:
        found = workers_of(process)
        return len(found) == 2 and any(each.cpu_times().user > 0.5 for each in found)

    wait_until(are_at_work, 60, "two workers, one in a transform that does not end")
    family = process.children(recursive=True)
    rank.kill()
    rank.wait()
    rank.stdout.close()
    assert line == "0\n"
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


def test_workers_end_with_their_loaders(folder):
    before = workers_of()
    (found,) = loaders_of(folder, 2, Reading(**READINGS["transforms"]))
    list(found.train)
    own = set(workers_of()) - set(before)
    assert len(own) == 2
    del found
    _, alive = psutil.wait_procs(own, timeout=30)
    assert not alive
