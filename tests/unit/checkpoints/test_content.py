"""Checkpoints are loaded as plain values: what runs code is refused, by name, also when written."""

from __future__ import annotations

import argparse
import collections
import datetime
import functools
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

from headrace.checkpoints.content import (
    check_can_be_loaded,
    read_checkpoint,
    read_weights,
    refusing,
    without_objects,
)
from headrace.checkpoints.sharded import load_into
from headrace.checkpoints.sharded_writer import save
from headrace.errors import PickledCheckpointError
from headrace.files.checksums import file_xxh3_128
from headrace.files.damage import seal
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
