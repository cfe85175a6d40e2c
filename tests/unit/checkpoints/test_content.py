"""Checkpoint files: published, pruned, and loaded as plain values; what runs code is refused."""

from __future__ import annotations

import argparse
import collections
import datetime
import functools
import math
import os
import pickle
import resource
import signal
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lightning.fabric.utilities.data import AttributeDict

from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.content import (
    check_can_be_loaded,
    read_checkpoint,
    read_weights,
    refusing,
    without_objects,
)
from headrace.checkpoints.sharded import load_into
from headrace.checkpoints.sharded_writer import save
from headrace.checkpoints.weights import weights_hash
from headrace.errors import PickledCheckpointError
from headrace.files.atomic import read_record, write_record
from headrace.files.checksums import file_xxh3_128
from headrace.files.damage import seal
from headrace.files.layout import checkpoint_name
from headrace.training.launch_records import TrainingOutcome
from support.checkpoints import write_in_parts

HARMLESS = {
    "rank": np.int64(3),
    "best": np.float32(0.5),
    "order": np.arange(5),
    "random": np.random.default_rng(1).bit_generator.state,
    "state": np.random.RandomState(1).get_state(),
    "torch": torch.get_rng_state(),
    "milestones": collections.Counter([3, 3, 5]),
    "names": collections.OrderedDict(a=1),
    "folder": Path("data"),
    "options": argparse.Namespace(lr=0.1),
    "seen": {1, 2},
}


class Runs:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def load(path: Path) -> Any:
    with refusing(path):
        return torch.load(path, weights_only=True)


def test_what_only_holds_values_is_loaded(tmp_path: Path) -> None:
    torch.save(HARMLESS, tmp_path / "a.ckpt")
    loaded = load(tmp_path / "a.ckpt")
    assert list(loaded) == list(HARMLESS)
    assert loaded["best"] == np.float32(0.5)
    assert loaded["options"].lr == 0.1
    check_can_be_loaded(tmp_path / "a.ckpt", dict)
    others = {"state_dict": {}, "when": datetime.date(2020, 1, 1)}
    torch.save(others, tmp_path / "b.ckpt")
    assert read_checkpoint(tmp_path / "b.ckpt", pickled=True) == others


def test_a_malicious_pickle_runs_nothing(tmp_path: Path) -> None:
    """In a checkpoint of PyTorch, and in a bare pickle of that name."""
    mark = tmp_path / "mark"
    torch.save({"state_dict": {}, "x": Runs(mark)}, tmp_path / "a.ckpt")
    with pytest.raises(PickledCheckpointError, match=r"a\.ckpt holds 'posix\.mkdir'") as error:
        load(tmp_path / "a.ckpt")
    assert "pickled_checkpoints: allow" in error.value.hint
    (tmp_path / "bare.ckpt").write_bytes(pickle.dumps(Runs(mark), 2))
    with pytest.raises((PickledCheckpointError, pickle.UnpicklingError)):
        load(tmp_path / "bare.ckpt")
    assert not mark.exists()
    torch.load(tmp_path / "a.ckpt", weights_only=False)
    assert mark.exists()  # it would have


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (datetime.date(2020, 1, 1), "datetime.date"),
        (functools.partial(print, "x"), "functools.partial"),
        (np.array([datetime.date(2020, 1, 1)]), "datetime.date"),
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
    ],
)
def test_what_could_not_be_loaded_is_named_with_its_place_when_it_is_written(
    tmp_path: Path, value: object, named: str
) -> None:
    content = {"state_dict": {}, "callbacks": {"Mine": {"fine": 1, "thing": value}}}
    torch.save(content, tmp_path / "a.ckpt")
    with pytest.raises(PickledCheckpointError, match=rf"'{named}' at callbacks\.Mine\.thing"):
        check_can_be_loaded(tmp_path / "a.ckpt", lambda: content)


def test_a_checkpoint_that_is_a_folder_is_refused_when_it_is_written(tmp_path: Path) -> None:
    """Its index is a pickle, which the strategy loads by itself."""
    with pytest.raises(PickledCheckpointError, match="as folders"):
        check_can_be_loaded(tmp_path, dict)


def test_no_file_of_a_checkpoint_in_parts_runs_anything(tmp_path: Path) -> None:
    """PyTorch's own reader would run both; what only holds values is loaded."""
    mark = tmp_path / "mark"
    weights = {"a.w": torch.arange(3)}
    good = write_in_parts(tmp_path / "good", weights)
    option = write_in_parts(tmp_path / "option", weights, Runs(mark))
    check_can_be_loaded(good, dict)
    assert read_checkpoint(good)["global_step"] == 5
    assert list(read_weights(good)["a.w"]) == [0, 1, 2]
    with pytest.raises(PickledCheckpointError, match=r"training keeps .* holds 'posix\.mkdir'"):
        check_can_be_loaded(option, dict)
    assert list(read_weights(option)["a.w"]) == [0, 1, 2]
    assert not mark.exists()
    load_into({"optimizer_0.lr": None}, option, pickled=True, alone=True)
    assert mark.exists()  # it would have
    mark.rmdir()
    (good / ".metadata").write_bytes(pickle.dumps(Runs(mark)))
    seal(good, {".metadata": file_xxh3_128(good / ".metadata")})
    with pytest.raises(PickledCheckpointError, match=r"index .* holds 'posix\.mkdir'"):
        read_checkpoint(good, pickled=True)
    assert not mark.exists()


class _PicklerOf3112(pickle.Pickler):
    """Pickles members of enums as Debian 12's Python 3.11.2 does."""

    def reducer_override(self, obj: Any) -> Any:
        return (getattr, (type(obj), obj.name)) if isinstance(obj, Enum) else NotImplemented


class _Attribute:
    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (torch.Size, "mro")


def test_an_index_pickled_by_an_older_python_is_read(tmp_path: Path) -> None:
    folder = write_in_parts(tmp_path / "good", {"a.w": torch.arange(3)})
    index = folder / ".metadata"
    _replace(index, pickle.loads(index.read_bytes()))
    assert list(read_weights(folder)["a.w"]) == [0, 1, 2]
    _replace(index, _Attribute())
    with pytest.raises(PickledCheckpointError, match=r"index .* holds 'getattr.*mro"):
        read_checkpoint(folder)


def _replace(index: Path, content: Any) -> None:
    with index.open("wb") as file:
        _PicklerOf3112(file).dump(content)
    seal(index.parent, {index.name: file_xxh3_128(index)})


def test_damage_is_not_told_as_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "bad.ckpt").write_bytes(b"no checkpoint")
    with pytest.raises(pickle.UnpicklingError):
        load(tmp_path / "bad.ckpt")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def room() -> Iterator[None]:
    """Files may have 20 KB, and the error is one that a full disk would give as well."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("alone", "room")
def test_what_the_system_said_is_told(tmp_path: Path) -> None:
    """PyTorch raises a RuntimeError of its archive, and loses what led to it between the ranks."""
    with pytest.raises(OSError, match="File too large"):
        save({"state_dict": {"w": torch.zeros(100_000)}}, tmp_path / "step.ckpt")


def test_hyperparameters_that_are_objects_are_left_out_of_checkpoints(tmp_path, caplog):
    """As `save_hyperparameters()` takes them from a model that gets modules and partials."""
    given = {
        "net": torch.nn.Linear(2, 2), "optimizer": functools.partial(torch.optim.SGD, lr=1.0),
        "lr": 0.1, "sizes": [1, 2], "nested": {"kept": "x"}, "hidden": {"net": torch.nn.ReLU()},
        "folder": Path("/data"), "weights": torch.ones(2), "none": None,
    }  # fmt: skip
    content = without_objects({"state_dict": {}, "hyper_parameters": AttributeDict(given)})
    assert content["hyper_parameters"].keys() == given.keys() - {"net", "optimizer", "hidden"}
    assert "'net' (Linear), 'optimizer' (partial), 'hidden' (dict)" in caplog.text
    torch.save(content, tmp_path / "x.ckpt")
    assert read_checkpoint(tmp_path / "x.ckpt")["hyper_parameters"]["lr"] == 0.1


def publish(folder: Path, step: int) -> Path:
    path = folder / checkpoint_name(step)
    torch.save({"state_dict": {"w": torch.arange(1000) + step}}, path)
    return path


def test_names_and_steps():
    assert checkpoint_name(123) == "step-000000123.ckpt"
    assert checkpoints.step_of(Path("a/step-000000123.ckpt")) == 123
    assert checkpoints.step_of(Path("final.ckpt")) is None
    assert checkpoints.step_of(Path(".step-000000123.ckpt.x.partial")) is None


def test_the_newest_by_step_not_by_time(tmp_path):
    publish(tmp_path, 30)
    publish(tmp_path, 9)
    assert checkpoints.newest_whole(tmp_path) == tmp_path / "step-000000030.ckpt"
    assert checkpoints.newest_whole(tmp_path / "nowhere") is None


@pytest.mark.parametrize("harm", ["truncate", "flip", "empty", "text"])
def test_damaged_checkpoints_are_passed_over(tmp_path, harm):
    good, bad = publish(tmp_path, 1), publish(tmp_path, 2)
    content = bytearray(bad.read_bytes())
    if harm == "flip":
        place = bytes(content).index((torch.arange(1000) + 2).numpy().tobytes()[:80])
        content[place + 500] ^= 1
    harmed = {"truncate": content[:-100], "flip": content, "empty": b"", "text": b"hello"}
    bad.write_bytes(harmed[harm])
    assert checkpoints.damage(good) is None
    assert checkpoints.damage(bad)
    assert checkpoints.newest_whole(tmp_path) == good


@pytest.mark.parametrize("harm", ["torn", "empty"])
def test_a_script_goes_on_from_the_newest_file_that_is_whole(tmp_path, harm):
    assert checkpoints.newest_of_script(tmp_path) is None
    for at, name in enumerate(("b.pt", "a.txt", "c.pt", ".d.pt.1.partial", checkpoints.OUTCOME)):
        torch.save({"w": torch.arange(1000)}, tmp_path / name)
        os.utime(tmp_path / name, (at, at))
    (tmp_path / "a.txt").write_text("of no known format")
    os.utime(tmp_path / "a.txt", (1, 1))
    content = (tmp_path / "c.pt").read_bytes() if harm == "torn" else b""
    assert checkpoints.newest_of_script(tmp_path) == tmp_path / "c.pt"
    (tmp_path / "c.pt").write_bytes(content[:-100])
    assert checkpoints.newest_of_script(tmp_path) == tmp_path / "b.pt"
    (tmp_path / "b.pt").unlink()
    assert checkpoints.newest_of_script(tmp_path) == tmp_path / "a.txt"


WEIGHTS = [
    "model.pt", "model.pth", "epoch=3.ckpt", "pytorch_model.bin", "model.safetensors", "model.h5",
    "model.keras", "model.joblib", "model.pkl", "weights.npz", "model.onnx", "ckpt-3.index",
    "hf/model-00001-of-00002.safetensors", "checkpoint-20/model.safetensors", "a/saved_model.pb",
    "orbax/3/default/ocdbt.process_0/manifest.ocdbt", "orbax_old/params.w/.zarray",
    "dcp/__0_0.distcp", "global_step3/mp_rank_00_model_states.pt", "model.weights.h5",
]  # fmt: skip
UNKNOWN = ["state.txt", "state.json", "model.json", "model", "model.cbm", "folder/model.cbm"]
RECORDS = [
    "all_results.json", "train_results.json", "eval_results.json", "trainer_state.json",
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "vocab.json", "vocab.txt", "merges.txt", "metrics.csv", "train.log",
    "model.safetensors.index.json", "training_args.bin", "README.md", "config.yaml", "loss.png",
    "events.out.tfevents.1.host.1.0", "runs/Nov28/events.out.tfevents.1.host.1.0",
    "logs/metrics.csv", "empty/", "checkpoint-9/rng_state_0.pth", "checkpoint-9/trainer_state.json",
]  # fmt: skip


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("others", [RECORDS, RECORDS + UNKNOWN], ids=["records", "unknown"])
def test_the_checkpoint_of_a_script_is_what_holds_weights(tmp_path, weights, others):
    """Also if all else is newer."""
    for at, name in enumerate((weights, *others)):
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text("x")
        top = tmp_path / Path(name).parts[0]
        os.utime(top, (at, at))
    (tmp_path / "latest").symlink_to("gone.pt")
    assert checkpoints.of_script(tmp_path)[0] == tmp_path / Path(weights).parts[0]
    assert checkpoints.newest_of_script(tmp_path) == tmp_path / Path(weights).parts[0]


@pytest.mark.parametrize("name", RECORDS + UNKNOWN)
def test_records_are_no_checkpoint_and_no_progress(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if name.endswith("/") else path.write_text("x")
    is_found = name in UNKNOWN
    assert bool(checkpoints.of_script(tmp_path)) == is_found
    assert bool(checkpoints.progress_in(tmp_path)) == is_found


def test_bits_that_flip_anywhere_are_damage_or_harmless(tmp_path):
    """Also those that tell how the file is to be read."""
    path = publish(tmp_path, 1)
    content = path.read_bytes()
    others = content.index((torch.arange(1000) + 1).numpy().tobytes()[:80]), 8000
    places = [n for n in range(0, len(content), 7) if not others[0] <= n < sum(others)]
    told = 0
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x81]) + content[place + 1 :])
        told += checkpoints.damage(path) is not None
    assert 0 < told < len(places)


def test_prune_keeps_the_newest_and_all_else(tmp_path):
    for step in (3, 6, 9, 12):
        publish(tmp_path, step)
    (tmp_path / "final.ckpt").touch()
    checkpoints.prune(tmp_path, 2)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["final.ckpt", "step-000000009.ckpt", "step-000000012.ckpt"]


def test_publish_replaces_files_and_folders(tmp_path):
    prepared = tmp_path / ".a.partial"
    prepared.write_text("new")
    checkpoints.publish(prepared, tmp_path / "a")
    assert (tmp_path / "a").read_text() == "new"
    for content in ("first", "second"):
        prepared.mkdir()
        (prepared / "shard").write_text(content)
        checkpoints.publish(prepared, tmp_path / "folder")
    assert (tmp_path / "folder" / "shard").read_text() == "second"
    assert not prepared.exists()


def test_a_folder_that_is_half_removed_has_lost_its_name(tmp_path, monkeypatch):
    """The next launch would take it for whole, were its list of checksums the first to go."""
    (tmp_path / checkpoint_name(1)).mkdir()
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    checkpoints.remove(tmp_path / checkpoint_name(1))
    assert checkpoints.newest_whole(tmp_path) is None
    monkeypatch.undo()
    checkpoints.remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_writers_left_is_removed(tmp_path):
    (tmp_path / ".step-000000003.ckpt.x.partial").touch()
    kept = publish(tmp_path, 3)
    checkpoints.remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]


def test_an_outcome_with_a_metric_that_is_not_finite_can_be_read(tmp_path):
    """A metric without a value, as the AUROC of one class, is NaN; its training is complete."""
    outcome = TrainingOutcome(
        fingerprint="f", checkpoint="", epochs=1, steps=2, world_size=1,
        metrics={"val/auroc": math.nan, "loss": 0.5},
    )  # fmt: skip
    write_record(tmp_path / checkpoints.OUTCOME, outcome)
    found = read_record(tmp_path / checkpoints.OUTCOME, TrainingOutcome)
    assert math.isnan(found.metrics["val/auroc"])
    assert found.metrics["loss"] == 0.5


def test_equal_weights_have_equal_hashes_and_others_have_not():
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1, dtype=torch.bfloat16)}
    first = weights_hash(weights)
    assert first == weights_hash(dict(reversed(weights.items())))
    assert first == weights_hash({**weights, "a": weights["a"].t().contiguous().t()})
    changed = [
        {**weights, "a": weights["a"].reshape(3, 2)},
        {**weights, "a": weights["a"].double()},
        {**weights, "a": weights["a"] + torch.tensor(1e-6)},
        {"c": weights["a"], "b": weights["b"]},
    ]
    assert len({first, *map(weights_hash, changed)}) == 5
