"""Writes a checkpoint, completely or not at all; in the background if the recipe says so.

Lightning's `AsyncCheckpointIO` does not fit. It copies within the accelerator's memory and queues
any number of writes. It does not report when a file is complete, which is when it may get its name
and older ones are removed. It reports a failure only at the next write or at the end.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Trainer
from torch import Tensor

from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.content import check_can_be_loaded, without_objects
from headrace.errors import PickledCheckpointError
from headrace.files.machine import storage_error, system_error
from headrace.training.strategies import ExactDDPStrategy, ShardedStrategy


class CheckpointWriter:
    """Writes checkpoints durably; all ranks call it together.

    `token` is unique to this launch, the same on all ranks, and names temporary files. `before` is
    called before each, and raises when the state must not be kept. With `plain` they may hold plain
    values and tensors only. With `in_background` rank 0 waits only for a copy of what is to be
    written. One is written at a time; strategies that write their files themselves are waited for.
    `longest_s` is the longest time from a call until the checkpoint was whole.
    """

    def __init__(
        self,
        *,
        token: str,
        before: Callable[[], None],
        plain: bool = True,
        in_background: bool = False,
    ) -> None:
        self._token, self._before, self._plain = token, before, plain
        self._in_background = in_background
        self._checked: set[bool] = set()
        self._copies: dict[bool, Mapping[str, Any]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self.longest_s = 0.0

    def write(
        self,
        trainer: Trainer,
        path: Path,
        *,
        weights_only: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Write a checkpoint; rank 0 calls `then` when it is complete, maybe in another thread.

        Raises the failure of this checkpoint or of the one before. After a `StorageFullError` no
        part of it is left.
        """
        began_s = time.monotonic()
        self._before()
        if isinstance(trainer.strategy, ExactDDPStrategy):
            trainer.strategy.average_replicas()
        self.wait()
        prepared = path.with_name(f".{path.name}.{self._token}.partial")
        with _telling(prepared, path):
            taken = self._save(trainer, prepared, weights_only)
        if not trainer.is_global_zero:
            return

        def finish() -> None:
            with _telling(prepared, path):
                if taken is not None:
                    taken.write(prepared)
            self._check(trainer, prepared, weights_only, taken)
            checkpoints.publish(prepared, path)
            if then is not None:
                then()
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)

        if taken is None:
            finish()
        else:
            self._thread = self._thread or ThreadPoolExecutor(1, "checkpoint")
            self._writing = self._thread.submit(finish)

    def look(self) -> None:
        """Raise the failure of a checkpoint that was written in the background."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is complete; raise its failure."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _save(self, trainer: Trainer, prepared: Path, weights_only: bool) -> _Taken | None:
        """Save a checkpoint, or take its content; None if it is saved, and on other ranks."""
        strategy = trainer.strategy
        usual = strategy.checkpoint_io  # also of others' callbacks, which want folders made
        io = _ToFile() if type(usual) is TorchCheckpointIO else usual
        taken = _Taken(io, self._copies.get(weights_only)) if self._in_background else None
        strategy.checkpoint_io = taken or io
        connector = trainer._checkpoint_connector  # noqa: SLF001  no hook sees weights alone
        collect = connector.dump_checkpoint
        if self._plain:
            connector.dump_checkpoint = lambda *given: without_objects(collect(*given))
        try:
            trainer.save_checkpoint(prepared, weights_only=weights_only)
        finally:
            strategy.checkpoint_io, connector.dump_checkpoint = usual, collect
        if taken is None or taken.content is None:
            return None
        self._copies[weights_only] = taken.content
        return taken

    def _check(
        self, trainer: Trainer, prepared: Path, weights_only: bool, taken: _Taken | None
    ) -> None:
        """Make sure of the first of a kind that it can be loaded: not at the resume, days later."""
        if not self._plain or weights_only in self._checked:
            return

        def written() -> Mapping[str, Any]:
            if taken is not None and taken.content is not None:
                return taken.content
            if isinstance(trainer.strategy, ShardedStrategy):
                return {}  # rank 0 cannot gather it alone: then the error names no place
            content: Mapping[str, Any] = trainer._checkpoint_connector.dump_checkpoint()  # noqa: SLF001
            return content

        try:
            check_can_be_loaded(prepared, written)
        except PickledCheckpointError:
            checkpoints.remove(prepared)
            raise
        self._checked.add(weights_only)


class _ToFile(TorchCheckpointIO):  # type: ignore[misc]
    """Writes to a file, as it comes.

    Lightning's own makes the whole file in memory first, while no other thread runs, and imports
    every object store's package that is installed, to see whether the file is in one.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write it."""
        del storage_options
        with Path(path).open("wb") as file:
            torch.save(checkpoint, file)


class _Taken(CheckpointIO):  # type: ignore[misc]
    """Takes a copy of what a strategy has written; `of` writes it in the end."""

    def __init__(self, of: CheckpointIO, before: Mapping[str, Any] | None) -> None:
        self.of, self._before = of, before
        self.content: Mapping[str, Any] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Take it."""
        del path, storage_options
        self.content = host_copy(checkpoint, self._before)

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> Any:
        """As the one that writes."""
        return self.of.load_checkpoint(path, *arguments, **options)

    def remove_checkpoint(self, path: Any) -> None:
        """As the one that writes."""
        self.of.remove_checkpoint(path)

    def write(self, path: Path) -> None:
        """Write it."""
        self.of.save_checkpoint(self.content, path)


@contextmanager
def _telling(prepared: Path, path: Path) -> Iterator[None]:
    """Leave nothing of a file that there was no room for, and tell so."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            checkpoints.remove(prepared)  # the step's own records may need the room
        go_on = "Training goes on from the checkpoint before it."
        if cause := system_error(error):
            cause.filename = str(path)
        named = storage_error(cause, path, "The checkpoint is not written: ", go_on)
        if named is None:
            raise
        raise named from error


def host_copy(content: Mapping[str, Any], before: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a copy of plain containers and tensors, in the memory of the copy `before`.

    Fresh memory costs several times the copy: the kernel clears each page first. Tensors that
    share all of their memory share it in the copy, too.
    """
    return _copied(content, before, {})  # type: ignore[no-any-return]


def _copied(value: Any, old: Any, known: dict[tuple[object, ...], Tensor]) -> Any:
    """Return a copy of a value; it reuses the tensors of an `old` copy that fit.

    `known` are the tensors that were copied already, by their memory.
    """
    if type(value) is Tensor and value.layout is torch.strided and not value.is_quantized:
        return _tensor(value.detach(), old, known)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        made = copy.copy(value)  # with its class and attributes
        for name, part in value.items():
            made[name] = _copied(part, before.get(name), known)
        return made
    if type(value) in (list, tuple):
        is_alike = isinstance(old, list | tuple) and len(old) == len(value)
        pairs = zip(value, old if is_alike else [None] * len(value), strict=True)
        return type(value)(_copied(part, each, known) for part, each in pairs)
    return copy.deepcopy(value)


def _tensor(value: Tensor, old: Any, known: dict[tuple[object, ...], Tensor]) -> Tensor:
    form = (value.dtype, value.shape, value.stride())
    place = (value.device, value.data_ptr(), *form)
    if value.numel() and place in known:
        return known[place]
    fits = isinstance(old, Tensor) and (old.dtype, old.shape, old.stride()) == form
    room: Tensor = old if fits else torch.empty_like(value, device="cpu")
    known[place] = room.copy_(value)
    return room
