"""Load checkpoints as plain values and tensors, because a pickle may run any code.

Objects of other classes are unpickled only if the site allows it (`pickled_checkpoints`).
"""

from __future__ import annotations

import argparse
import collections
import io
import pathlib
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.data import AttributeDict
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headrace.errors import PickledCheckpointError, StepError, warn_once
from headrace.files.damage import archive_damage, is_sealed, sealed_damage

_REFUSED = re.compile(
    r"(?:Trying to load unsupported )?GLOBAL ([\w.]+)|((?:Trying to|Can only) [^\n]{,120})"
)
_PLAIN = (bool, int, float, complex, str, bytes, Tensor, torch.dtype, torch.device, torch.Size)
_ALLOW = "set `pickled_checkpoints: allow` in the site, which loads any pickle."


@contextmanager
def refusing(path: Path | str | None) -> Iterator[None]:
    """Raise a `PickledCheckpointError` with the class that PyTorch refused to load."""
    torch.serialization.add_safe_globals(_harmless())
    try:
        yield
    except pickle.UnpicklingError as error:
        if path is None or not _REFUSED.search(str(error)):
            raise
        raise PickledCheckpointError(
            f"The checkpoint {path} holds {_refused(error)}, which is not loaded: unpickling may "
            "run any code",
            "Train again from the start, or set `pickled_checkpoints: allow` in the site if all "
            "who can write that file are trusted.",
        ) from error


def read_checkpoint(path: Path, *, pickled: bool = False) -> Mapping[str, Any]:
    """Read a checkpoint of Lightning; with `pickled`, objects of any class, which may run any code.

    Raises:
        PickledCheckpointError: It holds such objects without `pickled`.
        StepError: It is missing, damaged, or not a checkpoint of Lightning.
    """
    content = _loaded(path, pickled=pickled)
    if not isinstance(content, Mapping) or "state_dict" not in content:
        raise StepError(f"{path} is not a checkpoint of Lightning: it has no 'state_dict'")
    return content


def _loaded(path: Path, *, pickled: bool) -> object:
    problem = _damage(path)
    if problem is not None:
        raise StepError(f"The checkpoint {path} is damaged: {problem}", "Run the train step again.")
    try:
        with refusing(path):
            if path.is_dir():
                return _sharded().read_content(path, pickled=pickled)
            return torch.load(path, map_location="cpu", weights_only=not pickled)
    except FileNotFoundError:
        raise StepError(f"The checkpoint {path} is missing", "Run the train step again.") from None
    except (RuntimeError, EOFError, LookupError, ValueError, pickle.UnpicklingError) as error:
        raise StepError(
            f"The checkpoint {path} is damaged: {error}", "Run the train step again."
        ) from error


def _damage(path: Path) -> str | None:
    if path.is_dir():
        return sealed_damage(path)
    return archive_damage(path) if zipfile.is_zipfile(path) else None


def _sharded() -> ModuleType:
    from headrace.checkpoints import sharded  # it takes a second, and few need it

    return sharded


def read_weights(path: Path, *, pickled: bool = False) -> Mapping[str, Tensor]:
    """Return weights by name of a Lightning checkpoint, a `state_dict`, or `.safetensors` file.

    Raises:
        PickledCheckpointError: As `read_checkpoint`.
        StepError: The file is missing, damaged, or holds no weights.
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    content = _loaded(path, pickled=pickled)
    weights = content.get("state_dict", content) if isinstance(content, Mapping) else {}
    if not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise StepError(f"{path} holds no weights: it is neither a checkpoint nor a state_dict")
    return weights


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            aliases = file.metadata() or {}
    except FileNotFoundError:
        raise StepError(f"The weights {path} are missing") from None
    except SafetensorError as error:
        raise StepError(f"The weights {path} are damaged: {error}") from error
    # weights that share memory are written once, with their other names as metadata
    shared = {name: weights[kept] for name, kept in aliases.items() if kept in weights}
    return weights | shared


def without_objects(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint whose hyperparameters are those that can be loaded as plain values.

    A warning names the others, such as modules that `save_hyperparameters()` found among the
    arguments of the model: their weights are in the `state_dict`.
    """
    for key in ("hyper_parameters", "datamodule_hyper_parameters"):
        given = checkpoint.get(key)
        if not isinstance(given, Mapping):
            continue
        objects = {str(name): value for name, value in given.items() if not _is_plain(value)}
        if objects:
            kinds = ", ".join(f"'{name}' ({type(each).__name__})" for name, each in objects.items())
            warn_once(f"Checkpoints hold no objects, so these {key} are left out: {kinds}")
            checkpoint[key] = {name: given[name] for name in given if str(name) not in objects}
    return checkpoint


def _is_plain(value: object) -> bool:
    """Whether a value is loaded without unpickling classes of others."""
    if isinstance(value, Mapping):
        return type(value) in (dict, AttributeDict) and all(
            _is_plain(each) for each in value.values()
        )
    if isinstance(value, list | tuple | set):
        return all(_is_plain(each) for each in value)
    return value is None or type(value) in _PLAIN or type(value) in _harmless()


def check_can_be_loaded(path: Path, trained: Callable[[], Mapping[str, Any]]) -> None:
    """Raise a `PickledCheckpointError` unless a new checkpoint can be loaded as plain values.

    The error names the key and the class; for it `trained` returns the written content.
    """
    if path.is_dir() and not is_sealed(path):
        raise PickledCheckpointError(
            "The strategy writes checkpoints as folders, whose index is a pickle that a resume "
            "would have to load",
            f"Let the strategy write one file (state_dict_type: full), or {_ALLOW}",
        )
    torch.serialization.add_safe_globals(_harmless())
    try:
        if path.is_dir():
            _sharded().check_plain(path)
        else:
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        place = ".".join(_culprit(trained()))
        raise PickledCheckpointError(
            f"The state that training keeps in checkpoints holds {_refused(error)}"
            f"{f' at {place}' if place else ''}: no resume and no evaluation could load it",
            "Keep numbers, text, lists, dicts and tensors in `state_dict`, hyperparameters and "
            f"`on_save_checkpoint` (of that callback or model), or {_ALLOW}",
        ) from error


def _culprit(content: object) -> list[str]:
    """Return the keys that lead to the value that cannot be loaded."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if not _loads(value):
                return [str(key), *_culprit(value)]
    return []


def _loads(value: object) -> bool:
    room = io.BytesIO()
    try:
        torch.save(value, room)
        room.seek(0)
        torch.load(room, weights_only=True)
    except Exception:  # noqa: BLE001  whatever a user's object raises: it is the one
        return False
    return True


def _refused(error: pickle.UnpicklingError) -> str:
    found = _REFUSED.search(str(error))
    if found is None:
        return str(error).splitlines()[0]
    return f"'{found[1]}'" if found[1] else f"what PyTorch refuses ({found[2]})"


def _harmless() -> list[Any]:
    """Return classes that only hold values: NumPy's, and usual containers of hyperparameters."""
    array, number = np.empty(0), np.float64(0)
    dtypes = [kind for kind in vars(np.dtypes).values() if isinstance(kind, type)]
    containers = [argparse.Namespace, AttributeDict, collections.Counter, pathlib.PosixPath]
    makers = [np.ndarray, np.dtype, array.__reduce__()[0], number.__reduce__()[0]]
    return [*makers, *dtypes, *containers]
