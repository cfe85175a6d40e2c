"""Checkpoints that ranks write in parts (`torch.distributed.checkpoint`), loaded as plain values.

The folder has an index of the parts of tensors, `.metadata`. PyTorch's own reader unpickles any
object from it, and from each value that is not a tensor.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, EnumMeta
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from headrace.errors import PickledCheckpointError

WEIGHTS = "state_dict"
"""Under this key lie the weights, as in a checkpoint of Lightning that is one file."""

REST = "meta.pt"
"""What is neither weights nor optimizer state; the name is Lightning's."""

_INDEX = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"PosixPath"},
}  # fmt: skip
"""What an index consists of, by module, beside the dtypes of PyTorch. Source: PyTorch 2.13."""


class _IndexUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return self._enum_member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if name not in _INDEX.get(module, ()) and not is_dtype:
            raise self._refused(f"{module}.{name}")
        return super().find_class(module, name)

    def _enum_member(self, kind: Any, name: str) -> Enum:
        """Return a member of an enum: Python 3.11.0 to 3.11.3 pickle them as `getattr`."""
        if not (isinstance(kind, EnumMeta) and name in kind.__members__):
            raise self._refused(f"getattr({kind!r}, {name!r})")
        member: Enum = kind.__members__[name]
        return member

    def _refused(self, what: str) -> PickledCheckpointError:
        return PickledCheckpointError(
            f"The index of the checkpoint {self._folder} holds '{what}', which is not loaded: "
            "unpickling may run any code",
            "Nothing of the kind belongs there: do not use this checkpoint.",
        )


class _PlainReader(FileSystemReader):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        with (self.folder / ".metadata").open("rb") as file:
            metadata: Metadata = _IndexUnpickler(file, self.folder).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _PlainPlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load a value that is not a tensor by an unpickler of our own: PyTorch's runs any code."""
        ours = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), ours)
        ours.seek(0)
        super().load_bytes(read_item, ours)


def load_into(
    state: dict[str, Any],
    folder: Path,
    *,
    pickled: bool = False,
    partial: bool = False,
    alone: bool = False,
) -> None:
    """Fill the keys of a state, as `torch.distributed.checkpoint.load`; all ranks call it together.

    Values may be `pickled` objects of any class, which may run any code; keys may be missing if
    `partial`. With `alone`, this process calls it without the other ranks.

    Raises:
        UnpicklingError: A value is more than a plain one, and that is not wanted.
        PickledCheckpointError: The index is more than one.
    """
    planner = (DefaultLoadPlanner if pickled else _PlainPlanner)(allow_partial_load=partial)
    with one_failure(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(state, storage_reader=_PlainReader(folder), planner=planner, no_dist=alone)


def read_rest(folder: Path, *, pickled: bool = False) -> dict[str, Any]:
    """What is neither weights nor optimizer state."""
    content = torch.load(folder / REST, map_location="cpu", weights_only=not pickled)
    return dict(content)


def weights_in(folder: Path, device: str = "meta") -> dict[str, Any]:
    """Room for the weights of a checkpoint by name; on `meta` it only has shapes and dtypes."""
    stored = _PlainReader(folder).read_metadata().state_dict_metadata
    return {
        name.removeprefix(f"{WEIGHTS}."): _room(kind, device)
        for name, kind in stored.items()
        if name.startswith(f"{WEIGHTS}.")
    }


def read_content(folder: Path, *, pickled: bool = False) -> dict[str, Any]:
    """A checkpoint without optimizer state, put together, as one of Lightning's that is a file."""
    weights = {f"{WEIGHTS}.{name}": room for name, room in weights_in(folder, "cpu").items()}
    load_into(weights, folder, pickled=pickled, alone=True)
    found = {name.removeprefix(f"{WEIGHTS}."): value for name, value in weights.items()}
    return {**read_rest(folder, pickled=pickled), WEIGHTS: found}


def check_plain(folder: Path) -> None:
    """Make sure that all but the tensors are plain values; raises as `load_into`."""
    stored = _PlainReader(folder).read_metadata().state_dict_metadata
    values = {name: None for name, kind in stored.items() if not _is_tensor(kind)}
    if values:
        load_into(values, folder, alone=True)
    read_rest(folder)


@contextmanager
def one_failure() -> Iterator[None]:
    """Raise the error of a rank: PyTorch's is not an `Exception`, and holds those of all ranks."""
    try:
        yield
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        raise next((each for each in causes if isinstance(each, OSError)), causes[0]) from error


def _is_tensor(kind: object) -> bool:
    return isinstance(kind, TensorStorageMetadata)


def _room(kind: Any, device: str) -> Tensor | None:
    if not _is_tensor(kind):
        return None
    return torch.empty(kind.size, dtype=kind.properties.dtype, device=device)
